"""TensorFlow's variables with one component per replica, extended to weight the replicas' writes by rows.

Each replica may write alone to two kinds of variable:

* metric state (``synchronization=ON_READ``): the components are summed or averaged when read outside a replica.
  A replica without rows must add nothing.
* state of layers without aggregation (BatchNormalization's moving statistics, SpectralNormalization's vectors):
  each replica writes the value of its own rows. The engine synchronizes the components before the step ends.

A third kind, gradient accumulators, holds a partial sum on each replica until the sum is due.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import MirroredVariable, SyncOnReadVariable, get_update_replica_id
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.engine import metric_writes, state_writes
from strategies.engine.exported_weights import check_exported

#: Sums of metric state over all replicas, by the variables' references; None outside :func:`reading_totals`.
_totals: contextvars.ContextVar[Mapping[Any, tf.Tensor] | None] = contextvars.ContextVar(
    "keras_strategies_metric_totals", default=None
)


@contextlib.contextmanager
def reading_totals(totals: Iterable[tuple[MetricVariable, tf.Tensor]]) -> Iterator[None]:
    """Context manager: reading one of the variables outside replicas returns its paired total."""
    token = _totals.set({variable.ref(): total for variable, total in totals})
    try:
        yield
    finally:
        _totals.reset(token)


def holds_totals() -> bool:
    """Returns True inside :func:`reading_totals`."""
    return _totals.get() is not None


def _total_of(variable: MetricVariable) -> tf.Tensor | None:
    return (_totals.get() or {}).get(variable.ref())


class _ReadableNumber:
    """Adds ``float(variable)`` and ``int(variable)``, which plain variables support and mirrored ones do not."""

    name: str
    numpy: Callable[[], Any]

    @property
    def _plain_name(self) -> str:
        return str(self.name).partition(":")[0]

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())


class ReplicaStateVariable(_ReadableNumber, MirroredVariable):
    """A mirrored variable that reports to its strategy when a replica writes it alone.

    Programs' ``isinstance`` checks match TensorFlow's class; the check of Keras' optimizers for distributed variables,
    which searches the class name for TensorFlow's, does not match.
    """

    #: True if each replica has its own component.
    has_own_components = True

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Assigns ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=False)
        if write is None or not self.has_own_components:
            return super().assign(value if write is None else write.value, use_locking, name, read_value)
        return self._component_of(write).assign(write.value, use_locking, name, read_value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=True)
        if write is None or not self.has_own_components:
            return super().assign_add(value if write is None else write.value, use_locking, name, read_value)
        return self._component_of(write).assign_add(write.value, use_locking, name, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=True)
        if write is None or not self.has_own_components:
            return super().assign_sub(value if write is None else write.value, use_locking, name, read_value)
        return self._component_of(write).assign_sub(write.value, use_locking, name, read_value)

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Adds slices; in a trainer's step, the slices of the global batch."""
        dense = self._scattered(sparse_delta)
        return super().scatter_add(sparse_delta, use_locking, name) if dense is None else self.assign_add(dense)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtracts slices; in a trainer's step, the slices of the global batch."""
        dense = self._scattered(sparse_delta)
        return super().scatter_sub(sparse_delta, use_locking, name) if dense is None else self.assign_sub(dense)

    # TensorFlow's variables with several components lack the following methods.

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Sets slices of the variable, by the rules of :meth:`assign`."""
        return self.assign(tf.tensor_scatter_nd_update(self, indices, updates), name=name)

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Adds to slices of the variable, by the rules of :meth:`assign`."""
        return self.assign(tf.tensor_scatter_nd_add(self, indices, updates), name=name)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Subtracts from slices of the variable, by the rules of :meth:`assign`."""
        return self.assign(tf.tensor_scatter_nd_sub(self, indices, updates), name=name)

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Sets slices of the variable to their maximum with ``updates``, by the rules of :meth:`assign`."""
        return self.assign(tf.tensor_scatter_nd_max(self, indices, updates), name=name)

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Sets slices of the variable to their minimum with ``updates``, by the rules of :meth:`assign`."""
        return self.assign(tf.tensor_scatter_nd_min(self, indices, updates), name=name)

    def _scattered(self, sparse_delta: tf.IndexedSlices) -> tf.Tensor | None:
        """Returns row-dependent slices of a trainer's step as a dense tensor; None if TensorFlow's scatter is right."""
        share = state_writes.step_of_program()
        if share is None or get_update_replica_id() is not None or state_writes.is_same(sparse_delta):
            return None
        indices = tf.reshape(sparse_delta.indices, [-1, 1])
        return tf.scatter_nd(indices, sparse_delta.values, tf.constant(self.shape.as_list(), indices.dtype))

    def _global_write(self, value: Any, *, is_increment: bool) -> state_writes.Write | None:
        """Returns the running replica's write for ``value``; None where TensorFlow's contract holds."""
        share = state_writes.step_of_program()
        # A variable whose shape changes is refused where the write is recorded.
        if share is None or get_update_replica_id() is not None or not self.shape.is_fully_defined():
            return None
        if self.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return state_writes.first_replica_write(share, value, self.dtype)
        return state_writes.global_write(share, self._plain_name, value, self.dtype, is_increment=is_increment)

    def _component_of(self, write: state_writes.Write) -> Any:
        if write.differs:
            self.distribute_strategy.extended.engine.steps.note_write(self, by_program=True)
        return self._get()

    def read_value(self) -> tf.Tensor:
        """Reads the variable; in a trainer's step, first synchronizes replicas' own writes."""
        self._agree_before_read()
        return super().read_value()

    def value(self) -> tf.Tensor:
        """Reads the variable; in a trainer's step, first synchronizes replicas' own writes."""
        self._agree_before_read()
        return super().value()

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Reads rows; in a trainer's step, first synchronizes replicas' own writes."""
        self._agree_before_read()
        return self._get().sparse_read(indices, name)

    def gather_nd(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Reads slices; in a trainer's step, first synchronizes replicas' own writes."""
        self._agree_before_read()
        return self._get().gather_nd(indices, name)

    def _dense_var_to_tensor(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        self._agree_before_read()
        return state_writes.mark_read(super()._dense_var_to_tensor(*args, **kwargs))

    def _agree_before_read(self) -> None:
        share = shares.current()
        if share is None or not share.in_trainer or share.num_replicas == 1 or not self.has_own_components:
            return
        steps = self.distribute_strategy.extended.engine.steps
        pending = steps.pending_write(self, share.replica_id)
        if pending is None or not state_writes.must_agree(share, self._plain_name, *pending):
            return
        # Recorded first, since the component is read below and must not be synchronized again.
        steps.note_agreed(self, share.replica_id)
        component = self._get()
        component.assign(state_writes.mean(share, component.read_value()), read_value=False)

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> list[Any]:
        check_exported(self)
        return list(super()._export_to_saved_model_graph(*args, **kwargs))

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            state_writes.check_scattered(self._plain_name, value)
        # Integers are counters and random seeds, which advance equally on all replicas without being averaged.
        if self.aggregation == tf.VariableAggregation.NONE and self.dtype.is_floating:
            self.distribute_strategy.extended.engine.steps.note_write(self)
        return super()._update_replica(update_fn, value, **kwargs)


class MetricVariable(_ReadableNumber, SyncOnReadVariable):
    """A synchronized-on-read variable to which a replica without rows adds nothing."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns ``value``; a replica without rows of its own keeps its component."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: super(MetricVariable, self).read_value())
        return super().assign(term, *args, **kwargs)

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds ``value``; a replica without rows of its own adds 0."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: tf.zeros(self.shape, self.dtype))
        return super().assign_add(term, *args, **kwargs)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts ``value``; a replica without rows of its own subtracts 0."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: tf.zeros(self.shape, self.dtype))
        return super().assign_sub(term, *args, **kwargs)

    def _term(self, value: Any) -> Any:
        """Returns the replica's term of a program's write in a trainer's step; None if the value itself is the term."""
        share = None if get_update_replica_id() is not None else state_writes.step_of_program()
        if share is None:
            return None
        return metric_writes.term(share, self._plain_name, value, self.dtype, self.aggregation)

    def _dense_var_to_tensor(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self._marked(super()._dense_var_to_tensor(*args, **kwargs))

    def read_value(self) -> tf.Tensor:
        """Reads the variable; in a trainer's step, a replica reads its term of a sum."""
        return self._marked(super().read_value())

    def _marked(self, value: tf.Tensor) -> tf.Tensor:
        if self.aggregation == tf.VariableAggregation.SUM and state_writes.step_of_program() is not None:
            return mark(state_writes.mark_read(value), Kind.SUM)
        return value

    def _get_cross_replica(self) -> Any:
        total = _total_of(self)
        return super()._get_cross_replica() if total is None else total

    def _counted(self, value: Any, otherwise: Callable[[], tf.Tensor]) -> Any:
        share = shares.current()
        if share is None or share.surely_has_rows:
            return value
        return share.keep(tf.cast(value, self.dtype), otherwise())


class PartialSumVariable(MetricVariable):
    """A gradient accumulator: each replica holds a partial sum, and its value is the sum of these.

    Between processes, `is_spread` is true while the partial sums differ. While they are equal (nothing has been
    accumulated since the last update, since :func:`level`, or since a value was assigned), the value is one partial sum
    times the number of replicas, and every process can read and save it alone. While they differ, no process can:
    reading raises an error, and does not wait for processes that may never call it.

    Args:
        variable: a variable with one component per local replica.
        is_spread: bool scalar, shared by all accumulators of the optimizer.
    """

    def __init__(self, variable: SyncOnReadVariable, is_spread: tf.Variable) -> None:
        super().__init__(variable.distribute_strategy, variable.values, variable.aggregation)
        self.is_spread = is_spread

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns ``value``; outside a replica, each replica's component gets an equal part of it."""
        context = tf.distribute.get_replica_context()
        in_replica = context is not None and context.strategy is self.distribute_strategy
        if not in_replica and get_update_replica_id() is None:
            self.is_spread.assign(False)
        return super().assign(value, *args, **kwargs)

    def check_known(self) -> None:
        """Raises a ``ValueError`` if this process cannot compute the sum alone."""
        if self.is_shared and bool(self.is_spread):
            raise ValueError(self._fix())

    @property
    def is_shared(self) -> bool:
        """True if other processes also hold partial sums."""
        return self.distribute_strategy.extended.engine.layout.process_group is not None

    def _fix(self) -> str:
        return (
            f"{self.name!r} holds a part of the gradients that the processes have gathered since the last update, so "
            "one process cannot read or save their sum. Save after `fit`, at the end of an epoch, or at a step that "
            "completes the gradient_accumulation_steps; or call `strategies.sum_accumulated(optimizer)` on all "
            "processes before."
        )

    def _get_cross_replica(self) -> Any:
        if not self.is_shared or _total_of(self) is not None:
            return super()._get_cross_replica()
        if tf.executing_eagerly():
            self.check_known()
            return self._sum_of_like_parts()
        with tf.control_dependencies([tf.debugging.assert_equal(self.is_spread, False, self._fix())]):
            return self._sum_of_like_parts()

    def _sum_of_like_parts(self) -> tf.Tensor:
        num_parts = self.distribute_strategy.num_replicas_in_sync
        return self.values[0].read_value() * tf.cast(num_parts, self.dtype)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        def marked(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            saveable = make(*args, **kwargs)
            restore = saveable.restore

            def restore_like_parts(*args: Any) -> Any:
                with tf.control_dependencies([self.is_spread.assign(False)]):
                    return restore(*args)

            saveable.restore = restore_like_parts
            return saveable

        made = super()._gather_saveables_for_checkpoint()
        return {name: functools.partial(marked, make) for name, make in made.items()}


def level(accumulators: Sequence[PartialSumVariable]) -> None:
    """Sets every replica's partial sums to equal parts of the sums, so that each process can compute the sums alone.

    All processes that hold partial sums call it. Nothing is sent for sums whose parts are already equal.
    """
    spread = [variable for variable in accumulators if bool(variable.is_spread)]
    if not spread:
        return
    with spread[0].distribute_strategy.extended.engine.metric_totals(spread):
        for variable in spread:
            variable.assign(_total_of(variable), read_value=False)


def accumulators_of(optimizer: Any) -> list[PartialSumVariable]:
    """Returns the gradient accumulators, shared between processes, of an optimizer and of those that it wraps."""
    if optimizer is None:
        return []
    found = [getattr(variable, "value", None) for variable in optimizer.variables]
    return [each for each in found if isinstance(each, PartialSumVariable) and each.is_shared]


def check_known(accumulators: Sequence[PartialSumVariable]) -> None:
    """Raises a ``ValueError`` if this process cannot compute the sums alone."""
    for variable in accumulators:
        variable.check_known()


def aware(variable: Any) -> Any:
    """Returns ``variable``, rebuilt as the class of this file that replaces its TensorFlow class, if one does."""
    for theirs, ours in ((MirroredVariable, ReplicaStateVariable), (SyncOnReadVariable, MetricVariable)):
        if type(variable) is theirs:
            return ours(variable.distribute_strategy, variable.values, variable.aggregation)
    return variable
