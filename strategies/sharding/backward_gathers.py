"""Re-gathers weights for the backward pass and rewires its ops to the new tensors.

A tape computes gradients from the tensors of the forward pass, which would keep each weight in memory from its first
use to its last. So once the gradient ops exist, the units of weights are gathered a second time, in reverse order of
use. Each gather starts when the backward pass has finished with the unit that is used two positions later in the
forward pass, and the backward ops take the new tensors as inputs.

The last two units are still in memory when the backward pass begins, and it uses them first: they are not gathered
twice. An op on which the start of a gather depends keeps the tensor of the forward pass, for instance where a weight is
used both early and late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.placeholders import CHEAP

#: The number of units in memory at a time: the one in use and the next.
_NUM_KEPT = 2
#: Ops that read only the shape, no elements.
_SHAPE_OPS = frozenset(["Shape", "ShapeN", "Size", "Rank"])


class BackwardGathers:
    """Rewires the backward pass of one replica to weights that are gathered again for it.

    Args:
        forward: the names of the ops that do not belong to the backward pass.
        gather: returns the tensors of a unit, gathered after the current control dependencies.
        reduce: starts the reduction of a unit's gradients and returns the ops that end it; None if no gather waits for
            a reduction.
        only: by unit id, the tensors whose ops a gather of this unit waits for; other units are not gathered. None: all
            units are gathered.
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
        #: By unit id, the tensors that were gathered again.
        self.made: dict[int, Sequence[tf.Tensor]] = {}
        # The backward ops on which the start of a gather depends: rewiring these would make a cycle.
        self._before: set[tf.Operation] = set()

    def run(self, units: Sequence[tuple[Any, Sequence[tf.Tensor]]]) -> None:
        """Gathers the units again and rewires the backward pass.

        Args:
            units: in the order of their use, each unit with its tensors; None for a weight that no longer exists.
        """
        kept = list(reversed(units[-_NUM_KEPT:]))
        # The backward ops that use each unit, from the last unit to the first.
        done = [[op for op, *_ in self._uses(tensors)] for _, tensors in kept]
        used = [unit for unit, _ in kept]
        for unit, tensors in reversed(units[:-_NUM_KEPT]):
            after = list(next((ops for ops in reversed(done[:-1]) if ops), []))
            if self._reduce is not None:
                after += self._reduce(used[-2])
            used.append(unit)
            if self._only is not None:
                if id(unit) not in self._only:
                    continue
                after = [tensor.op for tensor in self._only[id(unit)] if tensor is not None]
            self._mark(after)
            uses = [use for use in self._uses(tensors) if use[0] not in self._before]
            if uses:
                with tf.control_dependencies(after):
                    regathered = self.made[id(unit)] = self._gather(unit)
                pairs = [(old, new) for old, new in zip(tensors, regathered, strict=True) if old is not None]
                self._rewire(uses, {old.ref(): new for old, new in pairs})
            done.append([op for op, *_ in uses])

    def _uses(self, tensors: Iterable[tf.Tensor]) -> list[tuple[tf.Operation, int, tf.Tensor]]:
        """Returns (backward op, input index, input) where the input is a weight or a cheap function of one."""
        found = []
        waiting = [tensor for tensor in tensors if tensor is not None]
        while waiting:
            tensor = waiting.pop()
            for op in consumers([tensor]):
                if op.name not in self._forward:
                    if op.type not in _SHAPE_OPS:
                        found += [(op, i, tensor) for i, each in enumerate(op.inputs) if each is tensor]
                elif op.type in CHEAP and op.inputs[0] is tensor:
                    waiting.append(op.outputs[0])
        return found

    def _mark(self, ops: Iterable[tf.Operation]) -> None:
        """Records the given ops of the backward pass and all backward ops on which they depend."""
        waiting = [op for op in ops if op.name not in self._forward]
        while waiting:
            op = waiting.pop()
            if op not in self._before:
                self._before.add(op)
                needed = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
                waiting += [each for each in needed if each.name not in self._forward and each not in self._before]

    def _rewire(self, uses: Sequence[tuple[tf.Operation, int, tf.Tensor]], regathered: dict[Any, tf.Tensor]) -> None:
        for op, index, tensor in uses:
            op._update_input(index, self._recomputed(tensor, regathered))

    def _recomputed(self, tensor: tf.Tensor, regathered: dict[Any, tf.Tensor]) -> tf.Tensor:
        if tensor.ref() not in regathered:
            op = tensor.op
            inputs = [self._recomputed(op.inputs[0], regathered), *op.inputs[1:]]
            with tf.device(op.device):
                made = op.graph.create_op(
                    op.type, inputs, [tensor.dtype], attrs=op.node_def.attr, name=f"{op.name}_recomputed"
                )
            regathered[tensor.ref()] = made.outputs[0]
        return regathered[tensor.ref()]


def consumers(tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Returns the ops that take any of the tensors as an input, each once."""
    return list(dict.fromkeys(op for tensor in tensors if tensor is not None for op in tensor.consumers()))
