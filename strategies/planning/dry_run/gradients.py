"""The operations between replicas: gradients, sharded weights and their updates, in the order of the strategies.

| shard | in each pass | after the passes |
|---|---|---|
| None | | an all-reduce for each bucket of gradients, the last weights first; update |
| "optimizer", "gradients" | | a reduce-scatter for each bucket; update; an all-gather for each bucket |
| "weights" | an all-gather for each unit | a reduce-scatter for each unit; update |

A pipeline gathers each unit once, before its first action. Without stages each micro-batch is a step of its own, whose
gradients are accumulated: shards of gradients are reduced in each of them. Units are gathered before the first part
that uses them, and again after the backward pass of the unit two positions later, when its gradients are reduced
(`strategies.sharding.units`); the last two, small ones, and those that the backward pass does not read are not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.operations import Operation, OperationKind
from strategies.planning.dry_run.sharded_units import WEIGHT_BYTES, gradient_buckets, weight_units
from strategies.planning.dry_run.stage_sizes import StageSizes
from strategies.schedules import Action

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = (
    OperationKind.ALL_REDUCE,
    OperationKind.ALL_GATHER,
    OperationKind.REDUCE_SCATTER,
)
# The number of large units that are gathered at a time.
_NUM_KEPT = 2


class ReplicaExchange:
    """The operations between the replicas of one rank's stages.

    Args:
        job: the job.
        stages: the stages of the rank.
    """

    def __init__(self, job: Job, stages: Sequence[StageSizes]) -> None:
        self._stages = stages
        self._num_data = job.layout.num_data
        self._shard = job.layout.shard if job.layout.num_data > 1 else None
        self._is_pipeline = job.layout.num_stages > 1
        self._buckets = gradient_buckets(job, stages) if self._shard != "weights" else []
        self._units = weight_units(job, stages) if self._shard == "weights" else []

    def before_passes(self) -> Iterator[Operation]:
        """Yields the all-gathers of a pipeline's sharded weights."""
        if self._is_pipeline:
            for number in self._used:
                yield self._gather(number, "the step")

    def before_part(self, part: str, action: Action) -> Iterator[Operation]:
        """Yields the all-gathers of the units that a part of a forward pass uses first; none in a pipeline."""
        for number in [] if self._is_pipeline else self._used:
            if self._units[number].first_part == (action.stage, part):
                yield self._gather(number, str(action))

    def after_backward(self, action: Action) -> Iterator[Operation]:
        """Yields the reduction of the gradients of a micro-batch that is a step of its own."""
        if not self._is_pipeline:
            if self._shard == "weights":
                yield from self._reduce_units(action)
            elif self._shard is not None:
                for number, size in enumerate(self._buckets):
                    yield self._operation(REDUCE_SCATTER, f"gradients of bucket {number} in {action}", size)

    def after_passes(self) -> Iterator[Operation]:
        """Yields the exchange of gradients, the update, and the exchange of updated weights."""
        kind = ALL_REDUCE if self._shard is None else REDUCE_SCATTER
        if self._num_data > 1 and (self._is_pipeline or self._shard is None):
            for number, size in enumerate(self._buckets):
                yield self._operation(kind, f"gradients of bucket {number}", size)
            for number in range(len(self._units)):
                yield self._reduce(number, "the step")
        yield Operation(OperationKind.COMPUTE, "update")
        for number, size in enumerate(self._buckets if self._shard is not None else []):
            yield self._operation(ALL_GATHER, f"updated weights of bucket {number}", size)

    def _reduce_units(self, action: Action) -> Iterator[Operation]:
        large = [number for number in self._used if not self._units[number].is_small]
        reduced = []
        for at in reversed(range(len(large) - _NUM_KEPT)):
            reduced.append(large[at + _NUM_KEPT])
            yield self._reduce(reduced[-1], str(action))
            if self._units[large[at]].in_backward:
                yield self._gather(large[at], str(action))
        for number in range(len(self._units)):
            if number not in reduced:
                yield self._reduce(number, str(action))

    def _gather(self, number: int, what: str) -> Operation:
        return self._operation(ALL_GATHER, f"weights of unit {number} for {what}", self._units[number].num_bytes)

    def _reduce(self, number: int, what: str) -> Operation:
        return self._operation(REDUCE_SCATTER, f"gradients of unit {number} in {what}", self._units[number].num_bytes)

    def _operation(self, kind: OperationKind, what: str, num_bytes: int) -> Operation:
        if kind is not ALL_REDUCE:
            # Parts are padded to one length.
            num_bytes = -(-num_bytes // (self._num_data * WEIGHT_BYTES)) * self._num_data * WEIGHT_BYTES
        return Operation(kind, what, "data", num_bytes=float(num_bytes))

    @functools.cached_property
    def _used(self) -> list[int]:
        """The numbers of the units in the order of their first use."""
        return sorted(range(len(self._units)), key=lambda number: self._units[number].first_use)
