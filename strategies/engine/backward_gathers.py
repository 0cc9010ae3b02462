"""The backward pass gathers weights anew: its operations are led from the forward pass' tensors to others.

A tape takes gradients by the tensors of the forward pass, which would keep each weight from its first use to its last.
So once gradients are there, units of weights are gathered a second time, from the last one used to the first, each when
the backward pass is done with the unit two behind it, and what the tape has made takes those.

The last two units are there when the backward pass begins, which uses them first: they are not gathered twice. Nor does
an operation take the second tensor on which the start of its gathering depends, as with a weight that is used early and
late: it keeps the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.stand_ins import CHEAP

#: Units that are there at a time: one that is computed with, and the next.
_NUM_KEPT = 2
#: Operations that read no elements.
_OF_SHAPE = frozenset(["Shape", "ShapeN", "Size", "Rank"])


class BackwardGathers:
    """Leads the backward pass of one replica to weights that are gathered for it.

    Args:
        forward: the names of the operations that are not of the backward pass.
        gather: returns the tensors of a unit, gathered behind the present control dependencies.
        reduce: begins the sum of a unit's gradients, and returns the operations with which it ends; None if nothing
            waits for it.
        only: tensors of the units that can be gathered, by the units' ids; None for all.
    """

    def __init__(
        self,
        forward: Collection[str],
        gather: Callable[[Any], Sequence[tf.Tensor]],
        reduce: Callable[[Any], Sequence[tf.Operation]] | None = None,
        only: Mapping[int, Sequence[tf.Tensor]] | None = None,
    ) -> None:
        self._forward = forward
        self._gather = gather
        self._reduce = reduce
        self._only = only
        #: The tensors of units that were gathered, by their ids.
        self.made: dict[int, Sequence[tf.Tensor]] = {}
        # All on which the start of a gathering depends, of the backward pass.
        self._before: set[tf.Operation] = set()

    def run(self, units: Sequence[tuple[Any, Sequence[tf.Tensor]]]) -> None:
        """Goes through units with their tensors, None of weights that are gone, in the order of their use."""
        kept = list(reversed(units[-_NUM_KEPT:]))
        # The backward uses of each unit, from the last one.
        done = [[op for op, *_ in self._uses(tensors)] for _, tensors in kept]
        used = [unit for unit, _ in kept]
        for unit, tensors in reversed(units[:-_NUM_KEPT]):
            behind = list(next((ops for ops in reversed(done[:-1]) if ops), []))
            if self._reduce is not None:
                behind += self._reduce(used[-2])
            used.append(unit)
            if self._only is not None:
                if id(unit) not in self._only:
                    continue
                behind = [tensor.op for tensor in self._only[id(unit)] if tensor is not None]
            self._mark(behind)
            uses = [use for use in self._uses(tensors) if use[0] not in self._before]
            if uses:
                with tf.control_dependencies(behind):
                    again = self.made[id(unit)] = self._gather(unit)
                pairs = [(old, new) for old, new in zip(tensors, again, strict=True) if old is not None]
                self._lead(uses, {old.ref(): new for old, new in pairs})
            done.append([op for op, *_ in uses])

    def _uses(self, tensors: Iterable[tf.Tensor]) -> list[tuple[tf.Operation, int, tf.Tensor]]:
        """Returns backward operations, which input of each is a weight or made of it cheaply, and that input."""
        found = []
        waiting = [tensor for tensor in tensors if tensor is not None]
        while waiting:
            tensor = waiting.pop()
            for op in consumers([tensor]):
                if op.name not in self._forward:
                    if op.type not in _OF_SHAPE:
                        found += [(op, i, tensor) for i, each in enumerate(op.inputs) if each is tensor]
                elif op.type in CHEAP and op.inputs[0] is tensor:
                    waiting.append(op.outputs[0])
        return found

    def _mark(self, ops: Iterable[tf.Operation]) -> None:
        """Remembers operations of the backward pass, and all on which they depend."""
        waiting = [op for op in ops if op.name not in self._forward]
        while waiting:
            op = waiting.pop()
            if op not in self._before:
                self._before.add(op)
                needed = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
                waiting += [each for each in needed if each.name not in self._forward and each not in self._before]

    def _lead(self, uses: Sequence[tuple[tf.Operation, int, tf.Tensor]], again: dict[Any, tf.Tensor]) -> None:
        for op, index, tensor in uses:
            op._update_input(index, self._made_again(tensor, again))

    def _made_again(self, tensor: tf.Tensor, again: dict[Any, tf.Tensor]) -> tf.Tensor:
        if tensor.ref() not in again:
            op = tensor.op
            inputs = [self._made_again(op.inputs[0], again), *op.inputs[1:]]
            with tf.device(op.device):
                made = op.graph.create_op(
                    op.type, inputs, [tensor.dtype], attrs=op.node_def.attr, name=f"{op.name}_again"
                )
            again[tensor.ref()] = made.outputs[0]
        return again[tensor.ref()]


def consumers(tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Returns the operations that take tensors, each once."""
    return list(dict.fromkeys(op for tensor in tensors if tensor is not None for op in tensor.consumers()))
