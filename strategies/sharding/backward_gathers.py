"""Unshards units again for the backward pass, and rewires its ops to the new tensors.

A tape computes gradients from the tensors of the forward pass, which would keep each weight in memory from its first
use to its last. So once the gradient's ops exist, units are unsharded a second time, in the order of the backward pass
([4] in `units`), and the backward ops take the new tensors as inputs. An op on which the start of a gather depends
keeps the tensor of the forward pass, for instance where a weight is used both early and late.

The finished graph is changed, and not each layer called as passes that reshard (`replica.placeholders`), because a
program reads weights anywhere, such as a tied table in another layer, and differentiates gradients again, as for a
gradient penalty: only the finished graph has all uses, and the calls of such passes have no second-order gradient. It
breaks if TensorFlow drops ``Operation._update_input``. A backward op that was not found costs memory, never a wrong
number: the two tensors are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.placeholders import CHEAP
from strategies.sharding.units import AllGatherUnit, ReplicaUnit, Unit

#: The number of units in memory at a time: the one in use and the next.
_NUM_KEPT = 2
#: Ops that read only the shape, no elements.
_SHAPE_OPS = frozenset(["Shape", "ShapeN", "Size", "Rank"])


class BackwardGathers:
    """Rewires the backward pass of one replica to weights that are gathered again for it.

    Args:
        backward: the ops of the backward pass.
        all_gather: gathers the weights of a unit.
        reduce: starts the reduction of a unit's gradients and returns the ops that end it; None if no gather waits for
            a reduction.
    """

    def __init__(
        self,
        backward: Collection[tf.Operation],
        all_gather: AllGatherUnit,
        reduce: Callable[[Unit], Sequence[tf.Operation]] | None = None,
    ) -> None:
        self._backward = backward
        self._all_gather = all_gather
        self._reduce = reduce
        # The backward ops on which the start of a gather depends: rewiring these would make a cycle.
        self._before: set[tf.Operation] = set()

    def run(self, units: Sequence[ReplicaUnit], peers: Sequence[Sequence[ReplicaUnit]] | None = None) -> None:
        """Unshards the units again and rewires the backward pass.

        Args:
            units: in the order of their use.
            peers: for each unit the same one on other local replicas, from which it is copied; a unit that none of them
                has gathered again is not. None: the units are gathered.
        """
        # The last two are still in memory when the backward pass begins, and it uses them first.
        kept = list(reversed(units[-_NUM_KEPT:]))
        # The backward ops that use each unit, from the last unit to the first.
        done = [[op for op, *_ in self._uses(each.handles.values())] for each in kept]
        used = [each.unit for each in kept]
        for i in reversed(range(len(units) - _NUM_KEPT)):
            own = units[i]
            own.reshard()
            after = list(next((ops for ops in reversed(done[:-1]) if ops), []))
            if self._reduce is not None:
                after += self._reduce(used[-2])
            used.append(own.unit)
            if peers is not None:
                known = own.on_peer(peers[i])
                if known is None:
                    continue
                after = [value.op for value in known[1] if value is not None]
            self._mark(after)
            uses = [use for use in self._uses(own.handles.values()) if use[0] not in self._before]
            if uses:
                own.unshard(self._all_gather, own.weights, after, () if peers is None else peers[i])
                pairs = zip(own.handles.values(), own.wait_for_unshard(), strict=True)
                self._rewire(uses, {old.ref(): new for old, new in pairs if old is not None})
            done.append([op for op, *_ in uses])

    def _uses(self, tensors: Iterable[tf.Tensor]) -> list[tuple[tf.Operation, int, tf.Tensor]]:
        """Returns (backward op, input index, input) where the input is a weight or a cheap function of one."""
        found = []
        waiting = [tensor for tensor in tensors if tensor is not None]
        while waiting:
            tensor = waiting.pop()
            for op in consumers([tensor]):
                if op in self._backward:
                    if op.type not in _SHAPE_OPS:
                        found += [(op, i, tensor) for i, each in enumerate(op.inputs) if each is tensor]
                elif op.type in CHEAP and op.inputs[0] is tensor:
                    waiting.append(op.outputs[0])
        return found

    def _mark(self, ops: Iterable[tf.Operation]) -> None:
        """Records the given ops of the backward pass and all backward ops on which they depend."""
        waiting = [op for op in ops if op in self._backward]
        while waiting:
            op = waiting.pop()
            if op not in self._before:
                self._before.add(op)
                needed = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
                waiting += [each for each in needed if each in self._backward and each not in self._before]

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
