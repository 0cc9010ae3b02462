"""Synchronization of gradients over the data axis.

Takes what the local replicas computed, gives what the optimizer's update needs on every device: the sum over all
replicas. Rows' weights are in the gradients already (``_keras_hooks.gradients``); buckets, overlap with the backward
pass and compression are the process group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica, select_replica
from strategies.batches.shares import Share
from strategies.engine.layout import ReplicaLayout, local_values
from strategies.engine.maxima import with_maxima
from strategies.engine.reductions import Reductions, Rider
from strategies.engine.waiting import Waits
from strategies.replica.overwritten import is_overwritten
from strategies.replica.rounding import rounded, rounding_of

_SUM = tf.distribute.ReduceOp.SUM


@dataclass(frozen=True)
class Accumulation:
    """Gradients that an optimizer gathers over several steps before it applies them.

    Attributes:
        accumulators: per gradient the variable, made under ``Accumulators.of``, that holds this replica's part.
        is_due: bool scalar, whether this step's gradients complete a sum.
    """

    accumulators: Sequence[Any]
    is_due: bool | tf.Tensor


class GradientSync:
    """Sums of local gradients over all replicas, each on the devices of its variable.

    Args:
        layout: the replicas.
        reductions: of the same replicas.
        waits: measures, if asked, how long the sums are waited for.
    """

    def __init__(self, layout: ReplicaLayout, reductions: Reductions, waits: Waits) -> None:
        self._layout = layout
        self._reductions = reductions
        self._waits = waits

    def synchronized(
        self,
        gradients: Sequence[Any],
        targets: Sequence[Any] | None,
        shares: Sequence[Share],
        accumulation: Accumulation | None = None,
        riders: Sequence[Rider] = (),
    ) -> tuple[list[Any], list[tf.Tensor]]:
        """Returns per gradient what the update of its variable needs, for each local replica; the totals of riders.

        Args:
            gradients: per variable a per-replica tensor or ``IndexedSlices``, a plain one that all replicas share and
                that is the sum already, or None. Local shapes: those of the variables.
            targets: per gradient its variable, on whose devices the sum is wanted; None if where the gradients are.
            shares: those of the local replicas in the running step; none outside of one.
            accumulation: if the optimizer gathers gradients: in a step in which they are not due, replicas do not
                communicate and the update gets the replica's own gradients; else it gets the sum over replicas of
                gradients and accumulators, and finds the accumulators empty. What replaces its variable is the
                maximum over replicas in each step; the optimizer gathers it.
            riders: other sums over all replicas, for which the gradients' message has room; only between processes, and
                not where the optimizer gathers gradients, which has no message in most steps.
        """
        results = with_maxima(self._layout, self._layout.per_replica(gradients), targets, shares)
        done = {i for i, target in enumerate(targets or ()) if is_overwritten(target)}
        dtypes = [rounding_of(local_values(value)[0]) for value in results]
        if accumulation is not None:
            results = self._rounded_ahead(results, targets, shares, dtypes)
            terms = self._terms(results, shares)
            results = [value if i in done else terms[i] for i, value in enumerate(results)]
        mine = [i for i, gradient in enumerate(results) if isinstance(gradient, PerReplica) and i not in done]
        local = [results[i] for i in mine]
        where = local if targets is None else [targets[i] for i in mine]
        totals: list[tf.Tensor] = []
        if accumulation is None:
            sums = self._sum(local, where, shares, riders)
            found, totals = sums[: len(mine)], sums[len(mine) :]
        elif riders:
            raise ValueError(f"Gathered gradients take no riders. Received: {len(riders)} of them.")
        else:
            held = [accumulation.accumulators[i] for i in mine]
            found = self._accumulated(local, where, shares, held, accumulation.is_due)
        for i, value in zip(mine, found, strict=True):
            results[i] = value
        if accumulation is None:
            results = [_rounded(value, dtype) for value, dtype in zip(results, dtypes, strict=True)]
        return results, totals

    def _rounded_ahead(
        self,
        gradients: Sequence[Any],
        targets: Sequence[Any] | None,
        shares: Sequence[Share],
        dtypes: Sequence[tf.DType | None],
    ) -> list[Any]:
        """Returns gradients, with the sums of those that are rounded in each step: what is gathered is rounded."""
        results = list(gradients)
        mine = [i for i, dtype in enumerate(dtypes) if dtype is not None and isinstance(results[i], PerReplica)]
        local = [results[i] for i in mine]
        sums = self._sum(local, local if targets is None else [targets[i] for i in mine], shares, ()) if mine else []
        for i, total in zip(mine, sums, strict=True):
            results[i] = Mirrored(tuple(local_values(total)))
        return [_rounded(value, dtype) for value, dtype in zip(results, dtypes, strict=True)]

    def _sum(
        self, local: list[Any], where: Sequence[Any], shares: Sequence[Share], riders: Sequence[Rider]
    ) -> list[Any]:
        present: bool | tf.Tensor = True
        if self._layout.process_group is not None and self._layout.num_local == 1:
            # Gradients leave bucket by bucket; a conditional around all of them would wait for the last.
            present = shares[0].has_rows if shares else True
        else:
            local = self._reductions.counted(local, shares)
        return self._measured(local, where, shares, present, riders)

    def _terms(self, gradients: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns terms of sums, which replicas gather over steps: of a sum that all have already, equal parts."""
        n = self._layout.num_replicas
        counted = self._reductions.counted(gradients, shares)
        return [_part(value, n) if isinstance(value, Mirrored) else value for value in counted]

    def _measured(
        self,
        local: list[Any],
        where: Sequence[Any],
        shares: Sequence[Share],
        present: bool | tf.Tensor = True,
        riders: Sequence[Rider] = (),
    ) -> list[Any]:
        is_measured = bool(self._waits.measures_communication and local)
        begin = self._waits.moment_after(local) if is_measured else None
        sums = self._reductions.to_groups(_SUM, local, where, shares, present=present, as_gradients=True, riders=riders)
        if begin is not None:
            self._waits.add_communication(begin, self._waits.moment_after(sums[: len(local)]))
        return sums

    def _accumulated(
        self,
        local: list[Any],
        where: Sequence[Any],
        shares: Sequence[Share],
        accumulators: Sequence[Any],
        is_due: bool | tf.Tensor,
    ) -> list[Any]:
        num_local = self._layout.num_local
        parts = local
        held = [accumulator.values for accumulator in accumulators]
        # One flag serves all accumulators of an optimizer.
        flags = {flag.ref(): flag for each in accumulators if (flag := getattr(each, "is_spread", None)) is not None}

        def note(spread: bool) -> None:
            for flag in flags.values() if self._layout.process_group is not None else ():
                flag.assign(spread)

        def own() -> list[list[tf.Tensor]]:
            note(True)
            return [
                [_dense(part.values[r], holder[r].device) for part, holder in zip(parts, held, strict=True)]
                for r in range(num_local)
            ]

        def summed() -> list[list[tf.Tensor]]:
            note(False)
            totals = []
            for part, holders in zip(parts, held, strict=True):
                components = []
                for value, holder in zip(part.values, holders, strict=True):
                    with tf.device(holder.device):
                        components.append(holder + tf.convert_to_tensor(value))
                        holder.assign(tf.zeros_like(holder))
                totals.append(PerReplica(tuple(components)))
            reduced = self._measured(totals, where, shares)
            return [[select_replica(r, total) for total in reduced] for r in range(num_local)]

        chosen = tf.cond(is_due, summed, own)
        return [PerReplica(tuple(values[i] for values in chosen)) for i in range(len(local))]


def _rounded(total: Any, dtype: tf.DType | None) -> Any:
    """Returns a sum, on each device on which it is, rounded as on one device."""
    if not isinstance(total, tf.distribute.DistributedValues):
        return rounded(total, dtype)
    return total if dtype is None else type(total)(tuple(rounded(value, dtype) for value in total.values))


def _part(total: Any, n: int) -> PerReplica:
    """Returns an equal part of a sum, a tensor or slices that all replicas have, for each replica."""
    parts = []
    for value in total.values:
        values = value.values if isinstance(value, tf.IndexedSlices) else value
        with tf.device(values.device):
            part = values / tf.cast(n, values.dtype)
        parts.append(
            tf.IndexedSlices(part, value.indices, value.dense_shape) if isinstance(value, tf.IndexedSlices) else part
        )
    return PerReplica(tuple(parts))


def _dense(value: Any, device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.convert_to_tensor(value)
