"""Traces the first local replica for all replicas of this process.

TensorFlow traces each replica in a thread of its own, one after the other. Here the first one is traced in the calling
thread. A merge call gets placeholders for the values of the others (`ReplicaCopies`), whose ops are added when the step
has been traced (`assembled_step`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import ReplicaContext, gradient_record
from strategies.batches.row_marks import marking
from strategies.batches.shares import NotAlikeError, Share
from strategies.steps.replica_copies import ReplicaCopies


class FirstReplica(ReplicaContext):
    """The context of the first local replica, which is traced for all.

    Args:
        strategy: the strategy.
        replica_id: the index of the replica on the data axis.
        copies: has the values of the others.
        before_merge: called before each merge call.
    """

    def __init__(self, strategy: Any, replica_id: int, copies: ReplicaCopies, before_merge: Callable[[], None]) -> None:
        super().__init__(strategy, replica_id)
        self._copies = copies
        self._before_merge = before_merge

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The index of the replica; a program that asks for it may do something else in each replica.

        Raises:
            NotAlikeError: always.
        """
        raise NotAlikeError("its program asks for the number of the replica")

    def _merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        copies = self._copies
        if tf.compat.v1.get_default_graph() is not copies.graph:
            # The beginning of what TensorFlow's replicas say; `explained` says the rest.
            raise RuntimeError("`merge_call` called while defining a new graph, not that of the step.")
        copies.end()
        self._before_merge()

        def for_all(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            # As in the thread that calls the replicas' threads: outside of the device and the tapes of a replica.
            with tf.device(None), gradient_record.stop_recording():
                return merge_fn(strategy, *args, **kwargs)

        result = super()._merge_call(for_all, copies.for_all_replicas(args), copies.for_all_replicas(kwargs))
        own = copies.take(result)
        copies.begin()
        return own


def shared_for_all(shares: Sequence[Share], arguments: Sequence[Any], copies: ReplicaCopies) -> Share:
    """Returns the share of the first local replica, for a trace that serves all local replicas.

    Args:
        shares: the shares of the local replicas.
        arguments: for each of them a nest of the arguments of its step.
        copies: registers what differs between the replicas.

    Raises:
        NotAlikeError: the replicas' graphs would differ, because their static numbers of rows do.
    """
    first = shares[0]
    for share in shares[1:]:
        for name in ("num_replicas", "combination", "num_rows"):
            if getattr(share, name) != getattr(first, name):
                raise NotAlikeError("replicas have different static numbers of rows")
    copies.pairs.add([(share.weight, share.has_rows) for share in shares])
    copies.pairs.add(arguments)
    for share, own in zip(shares[1:], arguments[1:], strict=True):
        with marking(own, share.dependence.sizes):
            pass
    rows = [share.find_first_row() for share in shares]
    first_row: tf.Tensor | None = None
    if all(row is not None for row in rows):
        tensors = [tf.identity(tf.convert_to_tensor(row, tf.int32)) for row in rows]
        copies.pairs.add(tensors)
        first_row = tensors[0]
    return dataclasses.replace(
        first,
        find_first_row=lambda: first_row,
        constant_of_replica=lambda value: copies.constant(lambda r: value(first.replica_id + r)),
    )
