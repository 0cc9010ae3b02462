"""Horovod's ops between the members of one process set."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from strategies.collectives.horovod import members
from strategies.collectives.horovod.fence import Fence
from strategies.collectives.ledger import Ledger
from strategies.collectives.transport import shape_of, size_in_bytes
from strategies.control_plane import Wait

_KINDS = {
    hvd.allreduce: "all_reduce",
    hvd.grouped_allreduce: "all_reduce",
    hvd.allgather: "all_gather",
    hvd.alltoall: "all_to_all",
    hvd.broadcast: "broadcast",
}
_REDUCE_OPS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "adasum": hvd.Adasum}


class HorovodGroup(members.Group):
    """Horovod's ops on one process set.

    Args:
        ranks: as for `Group`.
        position: as for `Group`.
        process_set: Horovod's object for these ranks.
        name: unique in this process, the same on all members.
        fence: the fence of the instance of the collectives.
        ledger: the ledger of the instance of the collectives.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        position: int,
        process_set: Any,
        name: str,
        fence: Fence,
        ledger: Ledger,
    ) -> None:
        super().__init__(ranks, position)
        self._process_set, self._name, self._fence, self._ledger = process_set, name, fence, ledger
        self._next_ordinal = 0
        self._lock = threading.Lock()

    def take(self, count: int = 1) -> int:
        """Returns the first of `count` new ordinals, each handed out once."""
        with self._lock:
            first, self._next_ordinal = self._next_ordinal, self._next_ordinal + count
        return first

    def reduce(self, values: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Returns the reductions of the values over the members, by one grouped op; by one op for each with adasum."""
        if len(values) > 1 and op != "adasum":
            return self._run(hvd.grouped_allreduce, list(values), op=_REDUCE_OPS[op])
        # Horovod's grouped form of adasum ends in a NameError.
        vectors = [tf.reshape(value, [-1]) for value in values]
        totals = [self._run(hvd.allreduce, vector, op=_REDUCE_OPS[op])[0] for vector in vectors]
        return [tf.reshape(total, shape_of(value)) for total, value in zip(totals, values, strict=True)]

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the members' rows concatenated in the order of their ranks."""
        return self._run(hvd.allgather, rows)[0]

    def exchange(
        self,
        rows: tf.Tensor,
        splits: Sequence[int | tf.Tensor] | None = None,
        ordinal: int | None = None,
        kind: str = "",
    ) -> tf.Tensor:
        """Sends each member its part of the rows, by `splits` or in equal parts; returns the rows received from all."""
        options = {} if splits is None else {"splits": tf.stack(splits)}
        return self._run(hvd.alltoall, rows, ordinal=ordinal, kind=kind, **options)[0]

    def broadcast(self, vector: tf.Tensor, root: int) -> tf.Tensor:
        """Returns the vector of the member at position `root`."""
        return self._run(hvd.broadcast, vector, root_rank=self.ranks[root])[0]

    def _run(
        self, function: Callable[..., Any], value: Any, *, ordinal: int | None = None, kind: str = "", **options: Any
    ) -> list[tf.Tensor]:
        """Returns the outputs of a Horovod function of a tensor or tensors; the first has one dimension or more."""
        options["process_set"] = self._process_set
        # Eagerly, ops run at once, one at a time: they need no name, and no optimiser can remove them.
        first, *others = [value] if isinstance(value, tf.Tensor) else value
        eager = tf.executing_eagerly()
        name = f"{self._name}_{_KINDS[function]}"
        if not eager:
            # The enclosing name scopes may differ between processes; the name must not.
            name = f"{self._name}_{self.take() if ordinal is None else ordinal}"
            options |= {"name": name, "ignore_name_scope": True}
            first = self._fence.pin(first)
        num_bytes = size_in_bytes([first, *others]) or None
        entry = self._ledger.entry(Wait(name, self.ranks, kind or _KINDS[function]), num_bytes=num_bytes)
        first = entry.started(first)
        with self._ledger.eagerly() if eager else contextlib.nullcontext():
            outputs = function(first if isinstance(value, tf.Tensor) else [first, *others], **options)
        outputs = [outputs] if isinstance(outputs, tf.Tensor) else list(outputs)
        outputs[0] = entry.done(outputs[0])
        if not eager:
            self._fence.keep(outputs[0], name)
        return outputs
