"""Synchronizes gradients over the data axis.

Takes the gradients of the local replicas and returns the sum over all replicas, on every device on which the update
needs it. The gradients are weighted by rows already (``_keras_hooks.gradients``); buckets, overlap with the backward
pass and compression are up to the process group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica, select_replica
from strategies.batches.shares import Share
from strategies.replica.overwritten import is_overwritten
from strategies.replica.rounding import rounded, rounding_of
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.maxima import with_maxima
from strategies.steps.reductions import SUM, FusedReduction, Reductions
from strategies.steps.waiting import Waits


@dataclass(frozen=True)
class Accumulation:
    """Gradients that an optimizer accumulates over several steps before it applies them.

    Attributes:
        accumulators: for each gradient the variable, made under ``OptimizerState.creating_accumulators``, with the
            replica's partial sum.
        is_due: bool scalar, True if this step's gradients complete a sum.
    """

    accumulators: Sequence[Any]
    is_due: bool | tf.Tensor


class GradientSync:
    """Sums local gradients over all replicas, each on the devices of its variable.

    Args:
        layout: the replicas.
        reductions: the reductions over these replicas.
        waits: measures, if enabled, the time spent waiting for the sums.
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
        fused: Sequence[FusedReduction] = (),
    ) -> tuple[list[Any], list[tf.Tensor]]:
        """Returns for each gradient the value that its update needs, on each local replica, and the sums of `fused`.

        Args:
            gradients: for each variable a per-replica tensor or ``IndexedSlices``, a plain one that all replicas share
                and that is already the sum, or None. Local shapes: those of the variables.
            targets: for each gradient its variable, on whose devices the sum is wanted; None: the gradients' devices.
            shares: the shares of the local replicas in the running step; empty outside a step.
            accumulation: given if the optimizer accumulates gradients. In a step in which they are not due, replicas do
                not communicate and the update gets the replica's own gradients. In a step in which they are due, it
                gets the sum over replicas of gradients and accumulators, and the accumulators are reset to zero. A
                gradient that replaces its variable is the maximum over replicas in each step; the optimizer accumulates
                it.
            fused: small sums over all replicas, fused with the gradients' reduction; not with `accumulation`, where
                most steps have no reduction.
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
            sums = self._sums(local, where, shares, fused)
            found, totals = sums[: len(mine)], sums[len(mine) :]
        elif fused:
            raise ValueError(f"Accumulated gradients take no fused reductions. Received: {len(fused)} of them.")
        else:
            accumulators = [accumulation.accumulators[i] for i in mine]
            found = self._accumulated(local, where, shares, accumulators, accumulation.is_due)
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
        """Sums and rounds the gradients that are rounded in each step, before accumulation; returns all gradients."""
        results = list(gradients)
        mine = [i for i, dtype in enumerate(dtypes) if dtype is not None and isinstance(results[i], PerReplica)]
        local = [results[i] for i in mine]
        sums = self._sums(local, local if targets is None else [targets[i] for i in mine], shares) if mine else []
        for i, total in zip(mine, sums, strict=True):
            results[i] = Mirrored(tuple(local_values(total)))
        return [_rounded(value, dtype) for value, dtype in zip(results, dtypes, strict=True)]

    def _terms(self, gradients: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns each replica's term to accumulate; a sum that all replicas have already is divided equally."""
        n = self._layout.num_replicas
        terms = self._reductions.terms(gradients, shares)
        return [_part(value, n) if isinstance(value, Mirrored) else value for value in terms]

    def _sums(
        self, local: list[Any], where: Sequence[Any], shares: Sequence[Share], fused: Sequence[FusedReduction] = ()
    ) -> list[Any]:
        with self._waits.communicating(local) as sums:
            sums += self._reductions.to_groups(SUM, local, where, shares, as_gradients=True, fused=fused)
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
        partial_sums = [accumulator.values for accumulator in accumulators]
        # All accumulators of an optimizer share one flag.
        flags = {flag.ref(): flag for each in accumulators if (flag := getattr(each, "is_spread", None)) is not None}

        def note(spread: bool) -> None:
            for flag in flags.values() if self._layout.num_processes > 1 else ():
                flag.assign(spread)

        def own() -> list[list[tf.Tensor]]:
            note(True)
            return [
                [_dense(part.values[r], sums[r].device) for part, sums in zip(parts, partial_sums, strict=True)]
                for r in range(num_local)
            ]

        def summed() -> list[list[tf.Tensor]]:
            note(False)
            totals = []
            for part, sums in zip(parts, partial_sums, strict=True):
                components = []
                for value, partial_sum in zip(part.values, sums, strict=True):
                    with tf.device(partial_sum.device):
                        components.append(partial_sum + tf.convert_to_tensor(value))
                        partial_sum.assign(tf.zeros_like(partial_sum))
                totals.append(PerReplica(tuple(components)))
            # The sums of earlier steps count, whether the replica has rows in this one or not.
            reduced = self._sums(totals, where, [dataclasses.replace(share, has_rows=True) for share in shares])
            return [[select_replica(r, total) for total in reduced] for r in range(num_local)]

        chosen = tf.cond(is_due, summed, own)
        return [PerReplica(tuple(values[i] for values in chosen)) for i in range(len(local))]


def _rounded(total: Any, dtype: tf.DType | None) -> Any:
    """Rounds a sum, on each of its devices, as on one device."""
    if not isinstance(total, tf.distribute.DistributedValues):
        return rounded(total, dtype)
    return total if dtype is None else type(total)(tuple(rounded(value, dtype) for value in total.values))


def _part(total: Any, n: int) -> PerReplica:
    """Divides a sum (tensor or slices) that all replicas have by ``n``, on each replica."""
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
