"""Sharded weights: each device of a group holds a shard, and a read returns the gathered whole weight.

A shard is a range of the flattened elements. Each local replica has a component, its shard, which may be empty. For
layers the variable has the shape of the whole weight; the engine gathers the value that it returns.

The weights of experts and tables are sharded by rows, and never gathered in a step: each replica computes with its own
rows. Its gradient is that of its own rows, from the inputs of its whole group; the other replicas of the group
contribute no term.

Source: stage 3 of ZeRO (Rajbhandari et al., arXiv:1910.02054); torch's FSDP2 also shards each weight separately.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int
from strategies.batches.row_kinds import ShardId
from strategies.replica.deferred import in_shapes_only, is_remote
from strategies.replica.driving import current_driver
from strategies.replica.placeholders import SHARDED
from strategies.replica.splitting import sharded_weight
from strategies.replica.stored_array import StoredArray
from strategies.replica.whole_of_slices import WholeOfSlices
from strategies.steps.exported_weights import export_whole
from strategies.steps.variables import ReplicaStateVariable


class Gathers(Protocol):
    """Gathers whole weights from their shards."""

    def read(self, variable: Any) -> tf.Tensor:
        """Returns the whole weight, on the reading replica's device or outside replicas."""

    def in_step(self) -> bool:
        """Returns True in a replica of a running step."""

    def handle_of(self, variable: Any) -> tf.Tensor:
        """Returns the tensor with respect to which gradients are taken."""

    def assign(self, variable: Any, value: tf.Tensor) -> None:
        """Sets a weight in a replica; all replicas call it and synchronize."""


def bounds(size: int, num_owners: int) -> list[tuple[int, int]]:
    """Returns the (begin, end) elements of each owner's shard; the sizes differ by at most one element.

    Example:

        assert bounds(5, 2) == [(0, 2), (2, 5)]
    """
    return list(itertools.pairwise(size * owner // num_owners for owner in range(num_owners + 1)))


def row_bounds(shape: Sequence[int], num_owners: int) -> list[tuple[int, int]]:
    """Returns the (begin, end) elements of each owner's shard of whole rows, the indices of dim 0; see :func:`bounds`.

    Example:

        assert row_bounds((3, 2), 2) == [(0, 2), (2, 6)]
    """
    row = math.prod(shape[1:])
    return [(begin * row, end * row) for begin, end in bounds(shape[0], num_owners)]


class ShardedVariable(ReplicaStateVariable):
    """A weight with a shard on each local replica.

    Args:
        strategy: the strategy under which it is created.
        components: the shard of each local replica, of the shape that ``weight_slices.range_shape`` returns.
        aggregation: TensorFlow's aggregation.
        shape: the shape of the whole weight.
        owners: for each local replica, the position of its shard.
        ranges: the elements of each shard, as returned by :func:`bounds`.
        gathers: gathers the whole weight.
        has_own_rows: True if a replica computes with the rows of its own shard, and no step may read the whole weight.
    """

    def __init__(
        self,
        strategy: Any,
        components: Sequence[Any],
        aggregation: Any,
        shape: Sequence[int],
        owners: Sequence[int],
        ranges: Sequence[tuple[int, int]],
        gathers: Gathers,
        *,
        has_own_rows: bool = False,
    ) -> None:
        super().__init__(strategy, components, aggregation)
        #: Read by layers.
        self.has_own_rows = has_own_rows
        self._whole_shape = tf.TensorShape(shape)
        self.owners = tuple(owners)
        self.bounds = tuple(ranges)
        self._gathers = gathers
        #: The unit with which the weight is gathered; set by :meth:`Unit.add`.
        self.unit: Any = None
        #: The shard that it is of a weight that the devices of a replica share, too; None if it is whole.
        self.shard: ShardId | None = None
        #: The shards as captured by graphs outside of steps, see `exported_weights`; None until the first such graph.
        self.captured: Any = None

    def keep(self, shards: Sequence[Any]) -> None:
        """Stores a variable for each shard that is not empty, on any process; arrays and files read these.

        Args:
            shards: the variables, in the order of the elements.
        """
        sizes = [end - begin for begin, end in self.bounds if begin < end]
        whole = WholeOfSlices(str(self.name).partition(":")[0], tuple(self._whole_shape), sizes, self.dtype.name)
        for shard in shards:
            whole.add(shard)
        whole.distributed = weakref.ref(self)
        setattr(self, SHARDED, whole)

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole weight."""
        return self._whole_shape

    def get_shape(self) -> tf.TensorShape:
        """Returns the shape of the whole weight."""
        return self._whole_shape

    @property
    def handle(self) -> Any:
        """The gathered weight, or in a step the replica's own rows; gradients are taken with respect to it."""
        if is_remote(self):
            return self.values[0].handle
        replica = get_current_replica_id_as_int()
        if self.has_own_rows and replica is not None and self._is_in_step():
            return self.values[replica].handle
        return self._gathers.handle_of(self)

    def _is_in_step(self) -> bool:
        return self._gathers.in_step() and not in_shapes_only()

    def _whole(self) -> tf.Tensor:
        """Returns the whole weight; all reads go through this method."""
        if self.has_own_rows and self._is_in_step():
            raise ValueError(
                f"A replica has some experts, or rows, of {self.name!r} only, and a step reads all of them, as a "
                "regularizer does. Use the weights of experts and of sharded tables in their layers only, without a "
                "regularizer; or leave the axis 'expert' out of the mesh, and use keras.layers.Embedding."
            )
        return self._gathers.read(self)

    def read_value(self) -> tf.Tensor:
        """Returns the whole weight."""
        return tf.identity(self._whole())

    def value(self) -> tf.Tensor:
        """Returns the whole weight."""
        return self._whole()

    def _get(self) -> tf.Tensor:
        return self._whole()

    def _get_cross_replica(self) -> tf.Tensor:
        return self._whole()

    def _dense_var_to_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> tf.Tensor:
        del name, as_ref
        value = self._whole()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns rows of the whole weight."""
        return tf.gather(self._whole(), indices, name=name)

    def gather_nd(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns slices of the whole weight."""
        return tf.gather_nd(self._whole(), indices, name=name)

    def numpy(self) -> np.ndarray:
        """Returns the whole weight; if several processes hold its shards, all of them call it."""
        return np.asarray(self._whole())

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Sets the weight: each replica stores its shard of the value, which is the same on all replicas."""
        del use_locking, name
        if not isinstance(value, StoredArray):
            value = tf.convert_to_tensor(value, self.dtype)
        if tuple(value.shape) != tuple(self._whole_shape):
            raise ValueError(f"{self.name!r} has shape {self._whole_shape}. Received: a value of shape {value.shape}.")
        if current_driver() is not None:
            shards_of(self).assign(value)
            return self if read_value else None
        if self._gathers.in_step():
            self._gathers.assign(self, value)
            return self if read_value else None
        for component, owner in zip(self.values, self.owners, strict=True):
            begin, end = self.bounds[owner]
            if is_remote(self):
                continue
            with tf.device(component.device):
                component.assign(own_range(value, begin, end, component.shape), read_value=False)
        return self if read_value else None

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds a value of the whole weight's shape."""
        return self.assign(self._whole() + tf.cast(value, self.dtype), use_locking, name, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts a value of the whole weight's shape."""
        return self.assign(self._whole() - tf.cast(value, self.dtype), use_locking, name, read_value)

    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, *args: Any, **kwargs: Any) -> list[Any]:
        del args, kwargs
        return export_whole(self, object_map, tensor_map)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": self._whole()}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"])


def is_row_sharded(variable: Any) -> bool:
    """Returns True if each replica has some rows of a Keras variable."""
    value = getattr(variable, "value", None)
    return isinstance(value, ShardedVariable) and value.has_own_rows


def shards_of(variable: ShardedVariable) -> WholeOfSlices:
    """Returns the shards of a variable on all processes."""
    found: WholeOfSlices = getattr(variable, SHARDED)
    return found


def own_range(value: Any, begin: int, end: int, shape: Sequence[int]) -> tf.Tensor:
    """Returns the flat elements ``begin:end`` of an array, reshaped to `shape`."""
    if isinstance(value, StoredArray):
        return tf.reshape(value.flat(begin, end), shape)
    # TensorFlow's slice is a view, which would keep the whole value in memory as long as the range.
    return tf.raw_ops.DeepCopy(x=tf.reshape(tf.reshape(value, [-1])[begin:end], shape))


def shards_of_each(variables: Sequence[Any]) -> list[Any]:
    """Returns Keras variables, each sharded one replaced by its shards on all processes."""
    found: list[Any] = []
    for variable in variables:
        whole = sharded_weight(variable)
        found += [variable] if whole is None else whole.shards
    return found
