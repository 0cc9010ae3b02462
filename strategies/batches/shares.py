"""A replica's share of the global batch: its number of rows, and their weight.

Keras takes the mean over each replica's rows and gives every replica the weight 1/N, so that the rows of a replica
with fewer rows weigh more. Here a replica's weight is its part of the rows: ``weight = rows / rows of all replicas``.
The weighted mean of per-replica means is then exactly the mean over the global batch.

A replica without rows (in a batch smaller than the number of replicas) still runs, since all replicas run the same
program. It runs on a dummy row with weight 0; what it writes or returns has no effect.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies.batches.row_context import Sizes, changing_rows, row_context
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, marking

_ATTRIBUTE = "_keras_strategies_share"

#: The combination of the steps' outputs by Keras' trainer; None outside the trainer, in the user's own loop.
Combination = Literal["mean", "concat"] | None


class NotAlikeError(BaseException):
    """The replicas' programs differ, or may differ: each has to be traced. The message is the reason.

    No ``Exception``, so that neither a program nor Keras handles it: the step is traced again.
    """


@dataclasses.dataclass(frozen=True)
class Share:
    """One replica's share of the step that is being run or traced.

    Attributes:
        replica_id: index on the data axis.
        num_replicas: size of the data axis.
        weight: this replica's rows / rows of all replicas; float, or float32 scalar where the batch size is not static.
        has_rows: whether any row is the replica's own; bool, or bool scalar tensor.
        combination: how Keras' trainer (``fit``, ``evaluate``, ...) combines what the step returns; None where the
            user's own loop drives the step.
        read_weight: takes a graph that outlives the step; returns the weight in the running step.
        num_rows: the number of rows that the replica sees, dummy row included; empty if not known beforehand.
        dependence: finds how tensors of the step depend on the replica's rows.
        raw_losses: whether losses stay unweighted, because the caller weights their total.
        sums_in_optimizer: whether gradients of weights stay local, because the optimizer sums them.
        draws_alike: whether seeds are those of replica 0, for numbers that are the same on all replicas.
        graph: the graph in which the replica's function began.
        num_all: rows of all replicas; int, or int32 scalar where not static; None where the step has no batch.
        find_first_row: returns the number of rows of the batch before this replica's, int or int32 scalar; None if
            unknown.
        constant_of_replica: where this replica is traced for all local ones: takes a function of a replica's id, and
            returns a constant tensor that has the function's value on each replica. Else None.
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
    sums_in_optimizer: bool = False
    draws_alike: bool = False
    graph: tf.Graph | None = None
    num_all: int | tf.Tensor | None = None
    find_first_row: Callable[[], int | tf.Tensor | None] = lambda: None
    constant_of_replica: Callable[[Callable[[int], Any]], tf.Tensor] | None = None

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
        # Branches and loop bodies are no inner functions: they are traced together with the graph around them.
        while getattr(graph, "is_control_flow_graph", False):
            graph = graph.outer_graph
        return self.num_replicas > 1 and self.graph is not None and graph is not self.graph

    @property
    def is_in_step_graph(self) -> bool:
        """True in the step's own graph, traced by all local replicas; not all may trace a branch, loop or function."""
        return self.graph is None or self.graph is tf.compat.v1.get_default_graph()

    @property
    def is_even(self) -> bool:
        """True if all replicas are known beforehand to have the same weight."""
        if self.num_replicas == 1:
            return True
        even = isinstance(self.weight, float) and self.weight * self.num_replicas == 1.0
        return even and not self.in_inner_function

    @property
    def surely_has_rows(self) -> bool:
        """True if the replica is known beforehand to have rows of its own."""
        return self.has_rows is True and not self.in_inner_function

    def value_on_replica(self, value: Callable[[int], Any]) -> Any:
        """Returns ``value(replica_id)``; as a tensor where this replica is traced for all local ones.

        Args:
            value: returns a number or an array for a replica's id. All have one dtype and shape.
        """
        return value(self.replica_id) if self.constant_of_replica is None else self.constant_of_replica(value)

    def on_first(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value`` on the first replica of the job, and zeros on the others."""
        is_first = self.value_on_replica(lambda replica: replica == 0)
        if isinstance(is_first, bool):
            return value if is_first else tf.zeros_like(value)
        return tf.where(is_first, value, tf.zeros_like(value))

    def local_weight(self) -> float | tf.Tensor:
        """Returns the weight, for use inside the replica's function."""
        if self.graph is None or not self.in_inner_function:
            return self.weight
        return self.read_weight(self.graph)

    def keep(self, value: Any, otherwise: Any) -> Any:
        """Returns ``value`` if this replica has rows of its own, else ``otherwise`` (same shape and dtype)."""
        if self.in_inner_function:
            return tf.where(tf.greater(self.local_weight(), 0.0), value, otherwise)
        if isinstance(self.has_rows, bool):
            return value if self.has_rows else otherwise
        return tf.where(self.has_rows, value, otherwise)

    def terms(self, values: Sequence[Any]) -> list[Any]:
        """Returns this replica's terms of sums, by one conditional: ``values``, or zeros without rows of its own.

        Args:
            values: tensors or ``IndexedSlices``. Slices keep their indices: zero values at any index add nothing.
        """
        if self.has_rows is True:
            return list(values)
        tensors = [v.values if isinstance(v, tf.IndexedSlices) else v for v in values]

        def zeros() -> list[tf.Tensor]:
            return [tf.zeros_like(tensor) for tensor in tensors]

        kept = zeros() if self.has_rows is False else tf.cond(self.has_rows, lambda: tensors, zeros)
        return [
            tf.IndexedSlices(own, v.indices, v.dense_shape) if isinstance(v, tf.IndexedSlices) else own
            for v, own in zip(values, kept, strict=True)
        ]

    def weigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value * weight``, in the dtype of ``value``."""
        return value * tf.cast(self.local_weight(), value.dtype)

    def as_mean(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value``; a sum or count over rows is divided by the weight, so that weighting it gives the sum."""
        if self.num_replicas == 1 or self.dependence.kind(value) not in (Kind.SUM, Kind.COUNT):
            return value
        # A count of rows is an integer.
        number = value if value.dtype.is_floating else tf.cast(value, tf.float32)
        return mark(self.unweigh(number), Kind.MEAN)

    def unweigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value / weight``, and 0 where the weight is 0."""
        return tf.math.divide_no_nan(value, tf.cast(self.local_weight(), value.dtype))


def attach(share: Share) -> None:
    """Makes :func:`current` return ``share`` for the rest of this replica's function.

    The share is stored in the replica context, which TensorFlow creates for every call of ``Strategy.run`` and carries
    into nested graphs, so that it does not outlive the call.
    """
    if share.graph is None:
        share = dataclasses.replace(share, graph=tf.compat.v1.get_default_graph())
    setattr(tf.distribute.get_replica_context(), _ATTRIBUTE, share)


@contextlib.contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Context manager: the current share, if there is one, has these fields."""
    share = current()
    if share is None:
        yield
        return
    attach(dataclasses.replace(share, **fields))
    try:
        yield
    finally:
        attach(share)


@contextlib.contextmanager
def none() -> Iterator[None]:
    """Context manager: :func:`current` returns None, because the block is not part of the replica's step."""
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


def current_dependence() -> RowDependence:
    """Returns the current :class:`RowDependence`: inside :func:`in_microbatches`, that on micro-batches' rows."""
    return known_dependence() or RowDependence()


def known_dependence() -> RowDependence | None:
    """Returns the same as :func:`current_dependence`; None outside steps, micro-batches and :func:`judged_by`."""
    share, rows = current(), row_context()
    found: RowDependence | None = rows.analysis or rows.microbatches
    return found if found is not None or share is None else share.dependence


def judged_by(dependence: RowDependence) -> contextlib.AbstractContextManager[None]:
    """Context manager: `dependence` is current while a model is traced only to analyse its outputs."""
    return changing_rows(analysis=dependence)


@contextlib.contextmanager
def in_microbatches(batch: Any, num_rows: Collection[int]) -> Iterator[None]:
    """Context manager: the replica computes a batch, a nest of tensors, in micro-batches of `num_rows` rows."""
    share = current()
    # A program that knows a size beforehand knows the size of the batch.
    num_all = () if share is None else share.dependence.sizes.of_all or share.num_rows
    dependence = RowDependence(num_rows, num_all=num_all)
    with changing_rows(microbatches=dependence), marking(batch, Sizes(num_rows, num_all)):
        yield


def split_into(number: int) -> contextlib.AbstractContextManager[None]:
    """Context manager: the block computes one of `number` micro-batches, not all rows of the replica."""
    return changing_rows(num_microbatches=number)


def num_microbatches() -> int:
    """Returns the number of micro-batches that the replica's rows are split into; 1 if they are not split."""
    return row_context().num_microbatches


def is_in_microbatches() -> bool:
    """Returns True inside :func:`in_microbatches`: a sum over rows is then only a part of the replica's sum."""
    return row_context().microbatches is not None
