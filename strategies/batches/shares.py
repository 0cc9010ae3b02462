"""A replica's share of the global batch: how many rows it holds, and what they weigh.

Keras gives every replica the mean over its own rows and then 1/N of the vote, so that the rows of a replica that
got fewer weigh more. Here a replica's vote is its part of the rows: ``weight = rows / rows of all replicas``. The
weighted mean of per-replica means is then the mean over the global batch, exactly.

A replica without rows (a batch smaller than the number of replicas) still runs, since all replicas run the same
program. It borrows one row from replica 0, votes with weight 0, and what it writes or returns counts for nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import Sizes, mark, marking
from strategies.batches.rows import Rows
from strategies.evenly import even_bounds

_ATTRIBUTE = "_keras_strategies_share"

#: The way in which Keras' trainer combines its steps' outputs: None outside the trainer, in the user's own loop.
Combination = Literal["mean", "concat"] | None


@dataclasses.dataclass(frozen=True)
class Share:
    """One replica's share of the step that is being run or traced.

    Attributes:
        replica_id: index on the data axis.
        num_replicas: size of the data axis.
        weight: rows here / rows of all replicas; float, or float32 scalar where the batch size is not static.
        has_rows: whether any row is the replica's own; bool, or bool scalar tensor.
        combination: how Keras' trainer (``fit``, ``evaluate``, ...) combines what the step returns; None where the
            user's own loop drives the step.
        read_weight: returns the weight as the running step has it, in a graph that outlives the step.
        num_rows: that the replica sees, if known beforehand: one number, or none.
        dependence: tells how tensors of the step depend on the replica's rows.
        raw_losses: whether losses are left as they are, because the caller weighs their total.
        graph: the graph in which the replica's function began.
        rows_that_count: the rows behind so many, int32 scalar, were added and count for nothing; None if none were.
        num_all: rows of all replicas; int, or int32 scalar where not static; None where the step has no batch.
        find_first_row: returns how many rows of the batch come before this replica's, int or int32 scalar; None if that
            is not known.
    """

    replica_id: int
    num_replicas: int
    weight: float | tf.Tensor
    has_rows: bool | tf.Tensor
    combination: Combination
    read_weight: Callable[[tf.Graph], tf.Tensor]
    num_rows: Collection[int]
    dependence: RowDependence
    raw_losses: bool = False
    graph: tf.Graph | None = None
    rows_that_count: tf.Tensor | None = None
    num_all: int | tf.Tensor | None = None
    find_first_row: Callable[[], int | tf.Tensor | None] = lambda: None

    @property
    def in_trainer(self) -> bool:
        """True if Keras' trainer drives the step."""
        return self.combination is not None

    @property
    def in_inner_function(self) -> bool:
        """True while tracing a ``tf.function`` that the replica's function calls; always False with one replica.

        Its graph serves later steps too, so nothing of this step may be written into it.
        """
        graph = tf.compat.v1.get_default_graph()
        # Branches and bodies of conditionals and loops are traced anew with the graph around them.
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        return self.num_replicas > 1 and self.graph is not None and graph is not self.graph

    @property
    def is_in_step_graph(self) -> bool:
        """True in the step itself, where all local replicas come by; in branches, loops and functions not all may."""
        return self.graph is None or self.graph is tf.compat.v1.get_default_graph()

    @property
    def is_even(self) -> bool:
        """True if all replicas are known beforehand to weigh the same."""
        if self.num_replicas == 1:
            return True
        even = isinstance(self.weight, float) and self.weight * self.num_replicas == 1.0
        return even and not self.in_inner_function

    @property
    def surely_has_rows(self) -> bool:
        """True if the replica is known beforehand to have rows of its own."""
        return self.has_rows is True and not self.in_inner_function

    def weight_here(self) -> float | tf.Tensor:
        """Returns the weight, for use inside the replica's function."""
        if self.graph is None or not self.in_inner_function:
            return self.weight
        return self.read_weight(self.graph)

    def keep(self, value: Any, otherwise: Any) -> Any:
        """Returns ``value`` if this replica has rows of its own, else ``otherwise`` (same shape and dtype)."""
        if self.in_inner_function:
            return tf.where(tf.greater(self.weight_here(), 0.0), value, otherwise)
        if isinstance(self.has_rows, bool):
            return value if self.has_rows else otherwise
        return tf.where(self.has_rows, value, otherwise)

    def weigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value * weight``, in the dtype of ``value``."""
        return value * tf.cast(self.weight_here(), value.dtype)

    def as_mean(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value``; of a sum over the replica's rows, what gives that of the batch when it is weighed."""
        if self.num_replicas == 1 or self.dependence.kind(value) not in (Kind.SUM, Kind.COUNT):
            return value
        # Of rows that are counted, too.
        number = value if value.dtype.is_floating else tf.cast(value, tf.float32)
        return mark(self.unweigh(number), Kind.MEAN)

    def unweigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value / weight``, and 0 where the weight is 0."""
        return tf.math.divide_no_nan(value, tf.cast(self.weight_here(), value.dtype))


def attach(share: Share) -> None:
    """Makes ``share`` what :func:`current` returns for the rest of this replica's function.

    It hangs on the replica context, which TensorFlow makes anew for every call of ``Strategy.run`` and carries
    into nested graphs, so nothing outlives the call.
    """
    if share.graph is None:
        share = dataclasses.replace(share, graph=tf.compat.v1.get_default_graph())
    setattr(tf.distribute.get_replica_context(), _ATTRIBUTE, share)


@contextlib.contextmanager
def none() -> Iterator[None]:
    """Inside, :func:`current` returns None: what is traced there is no part of the replica's step."""
    context = tf.distribute.get_replica_context()
    before = current()
    if before is not None:
        setattr(context, _ATTRIBUTE, None)
    try:
        yield
    finally:
        if before is not None:
            setattr(context, _ATTRIBUTE, before)


def current() -> Share | None:
    """Returns the share of the replica that is running, or None outside ``Strategy.run`` of this package."""
    return getattr(tf.distribute.get_replica_context(), _ATTRIBUTE, None)


def dependence_here() -> RowDependence:
    """Returns what tells how tensors depend on rows: those of micro-batches, inside of :func:`in_microbatches`."""
    return known_dependence() or RowDependence()


def known_dependence() -> RowDependence | None:
    """Returns what :func:`dependence_here` does; None outside of steps, of micro-batches, and of :func:`judged_by`."""
    share = current()
    return _judge.get() or _of_microbatches.get() or (None if share is None else share.dependence)


@contextlib.contextmanager
def judged_by(dependence: RowDependence) -> Iterator[None]:
    """Inside, a model is traced only to be judged: `dependence` tells how its tensors depend on rows."""
    token = _judge.set(dependence)
    try:
        yield
    finally:
        _judge.reset(token)


_judge: contextvars.ContextVar[RowDependence | None] = contextvars.ContextVar("keras_strategies_judge", default=None)


# The dependence of tensors on the rows of the micro-batches that are being computed.
_of_microbatches: contextvars.ContextVar[RowDependence | None] = contextvars.ContextVar(
    "keras_strategies_of_microbatches", default=None
)


_num_microbatches: contextvars.ContextVar[int] = contextvars.ContextVar("keras_strategies_num_microbatches", default=1)


@contextlib.contextmanager
def in_microbatches(batch: Any, num_rows: Collection[int]) -> Iterator[None]:
    """Inside, the replica computes a batch, a nest of tensors, in micro-batches of so many rows, where known."""
    share = current()
    # A program that knows a size beforehand knows that of the batch.
    num_all = () if share is None else share.dependence.sizes.of_all or share.num_rows
    token = _of_microbatches.set(RowDependence(num_rows, num_all=num_all))
    try:
        with marking(batch, Sizes(num_rows, num_all)):
            yield
    finally:
        _of_microbatches.reset(token)


@contextlib.contextmanager
def split_into(number: int) -> Iterator[None]:
    """Inside, what is computed has the rows of one of `number` micro-batches, and not all rows of the replica."""
    token = _num_microbatches.set(number)
    try:
        yield
    finally:
        _num_microbatches.reset(token)


def num_microbatches() -> int:
    """Returns the number of micro-batches of which one is being computed; 1 where the replica's rows are together."""
    return _num_microbatches.get()


def is_in_microbatches() -> bool:
    """True if the rows are those of a micro-batch: a sum over them is a part of the replica's."""
    return _of_microbatches.get() is not None


def divide(
    rows: Rows | None,
    first_replica: int,
    num_local: int,
    num_replicas: int,
    combination: Combination,
    read_weight: Callable[[int, tf.Graph], tf.Tensor],
) -> list[Share]:
    """Returns every local replica's share.

    Args:
        rows: the rows of the batch; None where the step's arguments hold no batch: every replica then weighs the
            same.
        first_replica: which of all replicas is the first local one.
        num_local: the number of local replicas.
        num_replicas: size of the data axis.
        combination: see :class:`Share`.
        read_weight: takes the local replica's index first; see :class:`Share`.
    """
    even = 1.0 / num_replicas
    weights: list[float | tf.Tensor] = [even] * num_local
    present: list[bool | tf.Tensor] = [True] * num_local
    num_all = None if rows is None else rows.total
    if rows is not None and num_replicas > 1:
        static = [n for n in rows.local if isinstance(n, int)]
        total = rows.total
        if total is None:
            total = sum(static) if len(static) == num_local else rows.local_total()
        num_all = total
        if isinstance(total, int) and len(static) == num_local:
            if total:
                weights = [n / total for n in static]
                present = [n > 0 for n in static]
        else:
            total = tf.cast(total, tf.float32)
            weights = [tf.math.divide_no_nan(tf.cast(n, tf.float32), total) for n in rows.local]
            present = [n > 0 if isinstance(n, int) else tf.greater(n, 0) for n in rows.local]
    own: list[Collection[int]] = [()] * num_local if rows is None else [_seen(n) for n in rows.local]
    return [
        Share(
            first_replica + r,
            num_replicas,
            weights[r],
            present[r],
            combination,
            functools.partial(read_weight, r),
            own[r],
            RowDependence(own[r], is_marked=num_replicas > 1, num_all=_of_all(rows, own[r], num_local, num_replicas)),
            num_all=num_all,
            find_first_row=functools.partial(_first_row, rows, num_all, r, first_replica + r, num_replicas),
        )
        for r in range(num_local)
    ]


def _seen(number: int | tf.Tensor) -> Collection[int]:
    """The number of rows that a replica sees, if it is known now: one where it has none, which is lent."""
    if isinstance(number, int) or hasattr(number, "numpy"):
        return (max(int(number), 1),)
    return ()


def _of_all(rows: Rows | None, own: Collection[int], num_local: int, num_replicas: int) -> Collection[int]:
    """The number of rows of all replicas, if it is known now: where only a replica's is, they are as many on each."""
    if rows is None or num_replicas == 1:
        return ()
    static = [n for n in rows.local if isinstance(n, int)]
    if isinstance(rows.total, int):
        return (rows.total,)
    if num_local == num_replicas and len(static) == num_local:
        return (sum(static),)
    return tuple(n * num_replicas for n in own)


def _first_row(
    rows: Rows | None, num_all: int | tf.Tensor | None, local: int, replica: int, num_replicas: int
) -> int | tf.Tensor | None:
    if rows is None or num_all is None:
        return None
    if len(rows.local) == num_replicas:
        return sum(rows.local[:local])
    if not rows.is_cut:
        return None
    bound: int | tf.Tensor = even_bounds(num_all, num_replicas, tf.minimum)[replica]
    return bound
