"""Central storage: each variable exists once, on the parameter device, which updates it; compute devices read it.

There are three kinds of variable under such a strategy:

* variables that replicas read and an optimizer writes: weights, slots, counters, learning rates. One component, on the
  parameter device;
* untrained state that each replica writes: moving statistics, random seeds. It is small, and differs between replicas
  until they are synchronized, so each compute device holds its own component, as in mirrored data parallelism;
* metrics: each compute device holds a partial sum.

Reads of the first kind run on the parameter device, and TensorFlow copies the value to the device that uses it.
Row lookups run there as well: only the rows of a table are sent to a replica, and only their gradients are sent back.

Source: the synchronous semantics of ``tf.distribute.experimental.CentralStorageStrategy``, TensorFlow 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica, UpdateContext
from strategies.replica.rounding import rounded, rounding_of
from strategies.steps import state_writes
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.maxima import with_maxima
from strategies.steps.optimizer_state import OptimizerState
from strategies.steps.reductions import Reductions
from strategies.steps.replica_state import local_mean
from strategies.steps.step import Steps
from strategies.steps.variables import ReplicaStateVariable

_NONE = tf.VariableAggregation.NONE


class CentralVariable(ReplicaStateVariable):
    """A variable with one component, on the parameter device, which all replicas read and write."""

    has_own_components = False

    @property
    def component(self) -> Any:
        """TensorFlow's variable, on the parameter device."""
        return self.values[0]

    @property
    def handle(self) -> Any:
        """The component's handle, the same on every replica; gradients are taken with respect to it."""
        return self.component.handle

    def read_value(self) -> tf.Tensor:
        """Reads the variable, on the parameter device."""
        with tf.device(self.component.device):
            return self.component.read_value()

    def value(self) -> tf.Tensor:
        """Reads the variable, on the parameter device."""
        return self.read_value()

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns rows, looked up on the parameter device."""
        with tf.device(self.component.device):
            return self.component.sparse_read(indices, name)

    def _dense_var_to_tensor(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        with tf.device(self.component.device):
            return super()._dense_var_to_tensor(*args, **kwargs)

    def _get_replica(self, replica_id: int) -> Any:
        return self.component

    def _write(self, method: str, write: state_writes.Write, *options: Any) -> Any:
        # The value is that of the global batch already: TensorFlow would sum it over the replicas, for a variable with
        # an aggregation.
        value = tf.convert_to_tensor(write.value, self.dtype)
        return self._write_once(lambda component, agreed: getattr(component, method)(agreed, *options), value)

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if self.aggregation != _NONE:
            return super()._update_replica(update_fn, value, **kwargs)
        # A layer writes its own weight, as SpectralNormalization does.
        return self._write_once(update_fn, value, **kwargs)

    def _write_once(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        # A replica that is ahead would overwrite a value that others still have to read: the replicas synchronize, and
        # the weight is written once.
        context = tf.distribute.get_replica_context()
        return context.merge_call(functools.partial(self._written_once, update_fn), args=(value,), kwargs=kwargs)

    def _written_once(self, update_fn: Callable[..., Any], strategy: Any, value: Any, **kwargs: Any) -> Any:
        agreed = strategy.extended.engine.central.mean(value) if self.dtype.is_floating else local_values(value)[0]
        return strategy.extended.update(self, update_fn, args=(agreed,), kwargs=kwargs, group=True)


class CentralStorage:
    """Creates variables on the parameter device, and updates them there.

    Args:
        device: the full name of the parameter device.
        layout: the replicas, on the compute devices.
        reductions: the reductions over these replicas.
        steps: the steps of these replicas.
        optimizer_state: the variables that optimizers are creating.
    """

    def __init__(
        self, device: str, layout: ReplicaLayout, reductions: Reductions, steps: Steps, optimizer_state: OptimizerState
    ) -> None:
        self.device = device
        self._layout = layout
        self._reductions = reductions
        self._steps = steps
        self._optimizer_state = optimizer_state

    def create(self, strategy: Any, next_creator: Callable[..., Any], kwargs: dict[str, Any]) -> CentralVariable:
        """Returns a variable on the parameter device.

        Args:
            strategy: the strategy under which it is created.
            next_creator: TensorFlow's variable creator.
            kwargs: the creator's arguments; modified in place.
        """
        kwargs.pop("colocate_with", None)
        with tf.device(self.device):
            component = next_creator(**kwargs)
        return CentralVariable(strategy, [component], component.aggregation)

    def keeps(self, kwargs: dict[str, Any]) -> bool:
        """Returns True if a variable with these arguments is on the parameter device, not on each replica's."""
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return False
        if self._optimizer_state.builders or isinstance(kwargs.get("colocate_with"), CentralVariable):
            return True
        # TensorFlow's default is trainable. A variable with an aggregation is written by all replicas together.
        return kwargs.get("trainable") is not False or kwargs.get("aggregation") not in (None, _NONE)

    def mean(self, value: Any) -> Any:
        """Returns the row-weighted mean over the replicas of the running step, on the parameter device."""
        shares = self._steps.context.shares
        values = local_values(value)
        with tf.device(self.device):
            return local_mean(values, shares) if len(values) == len(shares) else values[0]

    def update(
        self, gradients: Sequence[Any], update: Callable[[list[Any]], Any], targets: Sequence[Any] | None
    ) -> Any:
        """Sums gradients on the parameter device and calls ``update`` once, there. Call it in cross-replica context.

        Args:
            gradients: for each variable a per-replica tensor or ``IndexedSlices`` of the variable's shape, a plain one
                that all replicas share and that is the sum already, or None.
            update: takes the sums, in the same order.
            targets: for each gradient its variable.

        Returns:
            The result of ``update``.

        Raises:
            ValueError: if a variable is not on the parameter device.
        """
        for gradient, target in zip(gradients, targets or (), strict=False):
            if gradient is not None and not isinstance(target, CentralVariable):
                raise ValueError(
                    "The optimizer updates a variable that is not on the parameter device: it was made with "
                    "trainable=False, so that each compute device holds its own. Make it with trainable=True, inside "
                    f"`with strategy.scope():`. Received: {target.name!r}."
                )
        shares = self._steps.context.shares
        values = with_maxima(self._layout, self._layout.per_replica(gradients), targets, shares)
        dtypes = [rounding_of(local_values(value)[0]) for value in values]
        local = [i for i, value in enumerate(values) if isinstance(value, PerReplica)]
        sums = self._reductions.to_device(self.device, [values[i] for i in local], shares)
        for i, total in zip(local, sums, strict=True):
            values[i] = total
        with tf.device(self.device):
            # A `Mirrored` value is a sum that all replicas have already.
            values = [_copied(value) if isinstance(value, Mirrored) else value for value in values]
            values = [rounded(value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
        with tf.device(self.device), UpdateContext(0), tf.name_scope("update"):
            return update(values)


def _copied(total: Any) -> Any:
    """Copies a sum (tensor or slices) from the first replica to the current device."""
    return tf.nest.map_structure(tf.identity, total.values[0], expand_composites=True)
