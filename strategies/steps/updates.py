"""Updates variables by synchronized gradients, with other small reductions fused into the gradients' message.

The contract is tested in ``tests/strategies/processes/suite_exchanges.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import DistributedVariable, PerReplica, UpdateContext, select_replica
from strategies.collectives.descriptions import carrying, listed
from strategies.replica.owners import coordinates_of
from strategies.replica.parts import ReplicaParts
from strategies.replica.stage_messages import Description, StageMessages
from strategies.steps.context import DeferredUpdate
from strategies.steps.gradient_sync import Accumulation, GradientSync
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.reductions import FusedReduction
from strategies.steps.replica_state import state_vectors
from strategies.steps.step import Steps


class Updates:
    """Runs updates on the devices of the local replicas: at once, or later, with other reductions fused into them.

    Args:
        parts: the parts of a replica.
        layout: the replicas.
        gradient_sync: synchronizes gradients over these replicas.
        steps: the steps of these replicas.
    """

    def __init__(self, parts: ReplicaParts, layout: ReplicaLayout, gradient_sync: GradientSync, steps: Steps) -> None:
        self._parts = parts
        self._layout = layout
        self._gradient_sync = gradient_sync
        self._steps = steps

    def run(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        targets: Sequence[Any] | None,
        accumulation: Accumulation | None,
        fused: Sequence[FusedReduction],
    ) -> tuple[Any, list[tf.Tensor]]:
        """Synchronizes gradients and calls ``update`` once per local replica.

        Returns:
            The result of ``update`` for the first replica, and the sums of `fused`.
        """
        local, totals = self.synchronized(gradients, targets, accumulation, fused)
        copies = self._steps.context.copies
        if copies is not None:
            copies.pairs.add([list(select_replica(r, local)) for r in range(self._layout.num_local)])
            copies.begin()
        results = []
        for r, device in enumerate(self._layout.devices):
            with tf.device(device), UpdateContext(r), tf.name_scope(f"update_{r}"):
                results.append(update(list(select_replica(r, local))))
            if copies is not None:
                copies.end()
                break
        return results[0], totals

    def synchronized(
        self,
        gradients: Sequence[Any],
        targets: Sequence[Any] | None,
        accumulation: Accumulation | None = None,
        fused: Sequence[FusedReduction] = (),
    ) -> tuple[list[Any], list[tf.Tensor]]:
        """Returns the sums of gradients over all replicas, and of `fused`; see :meth:`GradientSync.synchronized`."""
        names = [str(each.name).split(":")[0] for each in targets or () if isinstance(each, DistributedVariable)]
        with carrying(f"gradients of {listed(names)}" if names else "gradients"):
            shares = self._steps.context.shares
            sums, totals = self._gradient_sync.synchronized(gradients, targets, shares, accumulation, fused)
        if targets is not None:
            sums = _with_same_bits(self._parts, self._layout.num_replicas, sums, targets)
        return sums, totals

    def defer(self, update: DeferredUpdate, targets: Sequence[Any] | None) -> None:
        """Defers an update until :meth:`finish`; runs the one deferred before.

        Args:
            update: takes fused reductions.
            targets: the variables that it updates.
        """
        self.finish()
        updated = frozenset(each.ref() for each in targets or () if isinstance(each, tf.Variable))
        self._steps.context.deferred.append((update, updated))

    def finish(self, fused: Sequence[FusedReduction] = ()) -> list[tf.Tensor] | None:
        """Runs the deferred update; its message also synchronizes the state that each replica wrote alone in the step.

        Args:
            fused: more small reductions to fuse with the update.

        Returns:
            The sums of `fused`, on the first local device of their groups; None if no update was deferred.
        """
        context = self._steps.context
        if not context.deferred:
            return None
        update, updated = context.deferred.pop()
        # A mean of what replicas wrote before the update must not overwrite it, as in SpectralNormalization's kernel.
        vectors = state_vectors(self._steps.take_written(updated), context.copies)
        state = [FusedReduction([vector.term_of_mean(context.shares)]) for vector in vectors]
        _, totals = update([*fused, *state])
        for vector, mean in zip(vectors, totals[len(fused) :], strict=True):
            vector.assign(mean)
        return totals[: len(fused)]


def _with_same_bits(parts: ReplicaParts, num_replicas: int, gradients: list[Any], targets: Sequence[Any]) -> list[Any]:
    """Returns gradients in which every copy of a weight has the bits of the first owner's, as of a tied embedding.

    Each copy, in a stage of its own, has its gradient reduced over "data" in its own process group. From three replicas
    on, the order in which a group adds depends on what else is in the message: the sums would differ in their last
    bits, and the copies would drift apart step by step. The contract is tested in
    ``tests/strategies/processes/spanning_copies.py``.

    Args:
        parts: the parts of the replica. Its processes along "pipe" call this function together.
        num_replicas: the number of replicas over which the gradients were summed. A sum of two terms does not depend on
            their order.
        gradients: for each variable the sum over all replicas; None for variables of other processes. Slices are
            concatenated, not added, and are returned unchanged.
        targets: the variables.
    """
    if num_replicas < 3 or not parts.crosses("pipe"):
        return gradients
    found = list(gradients)
    messages: StageMessages | None = None
    for i, (gradient, target) in enumerate(zip(gradients, targets, strict=True)):
        coordinates = coordinates_of(target)
        owners = sorted({parts.process_at("pipe", position) for position in coordinates.get("pipe", ())})
        part = parts.local_part(coordinates)
        # No process has two replicas if one spans processes.
        [value] = local_values(gradient)
        if len(owners) < 2 or part is None or not isinstance(value, tf.Tensor):
            continue
        messages = messages or StageMessages(parts)
        first, *others = owners
        if messages.position == first:
            for other in others:
                messages.send(part, other, [value])
        else:
            described = [Description.from_tensor(tf.ensure_shape(value, target.shape))]
            found[i] = PerReplica(tuple(messages.receive(part, first, described)))
    return found
