"""Variables with one component per replica, as TensorFlow has them, that know whose writes count.

Two kinds of variable may be written by a replica for itself:

* metric state (``synchronization=ON_READ``): the components are summed or averaged when read outside a replica.
  A replica without rows must add nothing.
* state of layers without aggregation (BatchNormalization's moving statistics, SpectralNormalization's vectors):
  each replica writes what it saw. The engine makes the components agree before the step ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies import shares
from strategies._tf_internals import MirroredVariable, SyncOnReadVariable
from strategies.crossing import Crossing


class _ReadableNumber:
    """``float(optimizer.learning_rate)`` and the like, as plain variables have them; TensorFlow's mirrored do not."""

    numpy: Callable[[], Any]

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())


class ReplicaStateVariable(_ReadableNumber, MirroredVariable):
    """A mirrored variable that reports to its strategy when a replica writes it for itself."""

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        # Integers are counters and random seeds, which advance alike on all replicas without being averaged.
        if self.aggregation == tf.VariableAggregation.NONE and self.dtype.is_floating:
            self.distribute_strategy.extended.note_replica_write(self)
        return super()._update_replica(update_fn, value, **kwargs)


class MetricVariable(_ReadableNumber, SyncOnReadVariable):
    """A synchronised-on-read variable to which a replica without rows adds nothing."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns ``value``; a replica without rows of its own keeps what it has."""
        return super().assign(self._counted(value, lambda: self.read_value()), *args, **kwargs)

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds ``value``; a replica without rows of its own adds 0."""
        return super().assign_add(self._counted(value, lambda: tf.zeros(self.shape, self.dtype)), *args, **kwargs)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts ``value``; a replica without rows of its own subtracts 0."""
        return super().assign_sub(self._counted(value, lambda: tf.zeros(self.shape, self.dtype)), *args, **kwargs)

    def _get_cross_replica(self) -> Any:
        presum = self.distribute_strategy.extended.presum_of(self)
        return super()._get_cross_replica() if presum is None else presum

    def _counted(self, value: Any, otherwise: Callable[[], tf.Tensor]) -> Any:
        share = shares.current()
        if share is None or share.surely_has_rows:
            return value
        return share.keep(tf.cast(value, self.dtype), otherwise())


def aware(variable: Any) -> Any:
    """Returns ``variable``'s components in the class of this file that replaces TensorFlow's, if one does."""
    for theirs, ours in ((MirroredVariable, ReplicaStateVariable), (SyncOnReadVariable, MetricVariable)):
        if type(variable) is theirs:
            return ours(variable.distribute_strategy, variable.values, variable.aggregation)
    return variable


def agree(
    written: Sequence[ReplicaStateVariable], local_shares: Sequence[shares.Share], crossing: Crossing | None
) -> None:
    """Sets the components of each variable to their mean over all replicas, each weighing what its rows weigh.

    Variables of one dtype and place travel as one vector: a deep network has a hundred small ones.

    Args:
        written: what a replica wrote for itself in this step.
        local_shares: the shares of this process' replicas, one per component.
        crossing: joins the other processes that hold replicas; None if none do.
    """
    if local_shares[0].num_replicas == 1:
        return
    kinds: dict[Any, list[ReplicaStateVariable]] = {}
    for variable in written:
        kinds.setdefault((variable.dtype, *variable._devices), []).append(variable)
    for alike in kinds.values():
        devices = [component.device for component in alike[0].values]
        vectors = []
        for r, device in enumerate(devices):
            with tf.device(device):
                parts = [tf.reshape(variable.values[r].read_value(), [-1]) for variable in alike]
                vectors.append(tf.concat(parts, axis=0))
        with tf.device(devices[0]):
            mean = _local_mean(vectors, local_shares) if crossing is None else _mean(vectors, local_shares, crossing)
        sizes = [math.prod(variable.shape) for variable in alike]
        for r, device in enumerate(devices):
            with tf.device(device):
                for variable, part in zip(alike, tf.split(mean, sizes), strict=True):
                    variable.values[r].assign(tf.reshape(part, variable.shape))


def _local_mean(vectors: Sequence[tf.Tensor], local_shares: Sequence[shares.Share]) -> tf.Tensor:
    """``first + sum(weight * (other - first))``: components that are equal already stay bit for bit."""
    first, *others = vectors
    mean = first
    for share, other in zip(local_shares[1:], others, strict=True):
        mean += tf.math.multiply_no_nan(other - first, tf.cast(share.weight, first.dtype))
    return mean


def _mean(vectors: Sequence[tf.Tensor], local_shares: Sequence[shares.Share], crossing: Crossing) -> tf.Tensor:
    """``sum(weight * value)``: nobody's value is here to start from."""
    part = tf.zeros_like(vectors[0])
    for share, vector in zip(local_shares, vectors, strict=True):
        part += tf.math.multiply_no_nan(vector, tf.cast(share.weight, vector.dtype))
    return crossing.sum([part])[0]
