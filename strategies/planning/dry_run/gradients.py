"""The operations between replicas: gradients, sharded weights and their updates, as the strategies run them.

| shard | after the passes |
|---|---|
| None | an all-reduce for each bucket of gradients, the last weights first; update |
| "optimizer", "gradients" | a reduce-scatter for each bucket; update; an all-gather for each bucket |
| "weights" | a reduce-scatter for each unit; update. An all-gather for each unit comes before each pass. |

A pipeline gathers each unit once in a step. Buckets and units are made by the functions that a job uses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from strategies.buckets import make_buckets
from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.operations import Operation, OperationKind
from strategies.planning.held_bytes import Weight, units_of

_WEIGHT_BYTES = 4


class ReplicaExchange:
    """The operations between the replicas of the stages of one position along "pipe".

    Args:
        job: the job.
        parameters: the parameters of each weight of these stages, in the order of creation.
    """

    def __init__(self, job: Job, parameters: Sequence[int]) -> None:
        self._job = job
        self._parameters = parameters
        self._is_shared = job.layout.num_data > 1
        self._gathers = self._is_shared and job.layout.shard == "weights"
        self._was_gathered = False

    def before_pass(self, what: str, *, backward: bool) -> Iterator[Operation]:
        """Yields the all-gathers of sharded weights for a pass.

        Args:
            what: the pass.
            backward: whether it is a backward pass, which uses the last weights first.
        """
        if not self._gathers or (self._was_gathered and self._job.layout.num_stages > 1):
            return
        self._was_gathered = True
        units = list(enumerate(self._units))
        # The last two units are still unsharded when the backward pass begins.
        for number, size in reversed(units[:-2]) if backward else units:
            yield self._operation(OperationKind.ALL_GATHER, f"weights of unit {number} for {what}", size)

    def after_passes(self) -> Iterator[Operation]:
        """Yields the exchange of gradients, the update, and the exchange of updated weights."""
        shard, update = self._job.layout.shard, Operation(OperationKind.COMPUTE, "update")
        if not self._is_shared:
            yield update
            return
        kind = OperationKind.ALL_REDUCE if shard is None else OperationKind.REDUCE_SCATTER
        buckets = list(reversed(self._units)) if shard == "weights" else self._buckets
        for number, size in enumerate(buckets):
            yield self._operation(kind, f"gradients of bucket {number}", size)
        yield update
        for number, size in enumerate(buckets if shard in ("optimizer", "gradients") else ()):
            yield self._operation(OperationKind.ALL_GATHER, f"updated weights of bucket {number}", size)

    def _operation(self, kind: OperationKind, what: str, num_bytes: int) -> Operation:
        n = self._job.layout.num_data
        # Parts are padded to one length.
        padded = num_bytes if kind is OperationKind.ALL_REDUCE else -(-num_bytes // (n * _WEIGHT_BYTES))
        size = padded if kind is OperationKind.ALL_REDUCE else padded * n * _WEIGHT_BYTES
        return Operation(kind, what, "data", num_bytes=float(size))

    @functools.cached_property
    def _units(self) -> list[int]:
        weights = [Weight(_WEIGHT_BYTES * number) for number in self._parameters]
        return [unit.num_bytes for unit in units_of(weights, self._job.bucket_bytes)]

    @functools.cached_property
    def _buckets(self) -> list[int]:
        sizes, dtypes = [_WEIGHT_BYTES * each for each in self._parameters], ["float32"] * len(self._parameters)
        return [bucket.num_bytes for bucket in make_buckets(sizes, dtypes, self._job.bucket_bytes)]
