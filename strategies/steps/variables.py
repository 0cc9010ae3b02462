"""TensorFlow's variables with one component per replica, extended to weight the replicas' writes by rows.

Each replica may write alone to two kinds of variable:

* state of layers without aggregation (BatchNormalization's moving statistics, SpectralNormalization's vectors):
  each replica writes the value of its own rows. The engine synchronizes the components before the step ends. These
  variables are in this file.
* metric state (``synchronization=ON_READ``): the components are summed or averaged when read outside a replica.
  These are in `metric_variables`.

A third kind, gradient accumulators, holds a partial sum on each replica until the sum is due (`partial_sums`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import MirroredVariable, get_update_replica_id
from strategies.batches import shares
from strategies.steps import state_writes
from strategies.steps.exported_weights import check_exported


class ReadableNumber:
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


class ReplicaStateVariable(ReadableNumber, MirroredVariable):
    """A mirrored variable that reports to its strategy when a replica writes it alone.

    Programs' ``isinstance`` checks match TensorFlow's class; the check of Keras' optimizers for distributed variables,
    which searches the class name for TensorFlow's, does not match.
    """

    #: True if each replica has its own component.
    has_own_components = True

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Assigns ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=False)
        if write is None:
            return super().assign(value, use_locking, name, read_value)
        return self._write("assign", write, use_locking, name, read_value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=True)
        if write is None:
            return super().assign_add(value, use_locking, name, read_value)
        return self._write("assign_add", write, use_locking, name, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts ``value``; in a trainer's step, the value of the global batch, see `state_writes`."""
        write = self._global_write(value, is_increment=True)
        if write is None:
            return super().assign_sub(value, use_locking, name, read_value)
        return self._write("assign_sub", write, use_locking, name, read_value)

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
        if get_update_replica_id() is not None:
            return None
        state_writes.check_shards(self._plain_name, value)
        share = state_writes.step_of_program()
        # A variable whose shape changes is refused where the write is recorded.
        if share is None or not self.shape.is_fully_defined():
            return None
        if self.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return state_writes.first_replica_write(share, value, self.dtype)
        return state_writes.global_write(share, self._plain_name, value, self.dtype, is_increment=is_increment)

    def _write(self, method: str, write: state_writes.Write, *options: Any) -> Any:
        """Calls a method of the running replica's component with the value of a write, and its options."""
        if write.differs:
            self.distribute_strategy.extended.engine.steps.note_write(self, by_program=True)
        return getattr(self._get(), method)(write.value, *options)

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
