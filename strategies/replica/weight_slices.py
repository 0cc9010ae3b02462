"""Weights whose updates are partitioned: each owner updates a range of the elements.

To an optimizer, a :class:`WeightSlice` is a variable: it reads and writes its range of the weight on the device of its
owner. The weight may be stored in three ways:

    each device has the whole weight    a slice is a range of the owner's variable
    each device has a shard             a slice is the owner's shard, a variable of its own (`is_shard`)
    each device has a shard, and the    a slice is a variable with all elements, which its owner has for updates only
    optimizer needs whole weights       (`is_whole_on_owner`)

Slots are made for slices, so that each exists on the owner's device only. In arrays and files, the slots of all
slices of a weight are one slot of the weight's shape: a :class:`WholeOfSlices`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import get_update_replica_id
from strategies.replica.splitting import weight_of
from strategies.replica.weight_math import WeightMath
from strategies.replica.whole_of_slices import WholeOfSlices


def range_shape(whole: tuple[int, ...], begin: int, end: int) -> tuple[int, ...]:
    """Returns the shape of a range of elements: that of the whole, that of some rows, or flat.

    Example:

        assert [range_shape((4, 3), 0, end) for end in (12, 6, 5)] == [(4, 3), (2, 3), (5,)]
    """
    row = math.prod(whole[1:])
    if end - begin == math.prod(whole):
        return whole
    return ((end - begin) // row, *whole[1:]) if whole and row and begin % row == 0 == end % row else (end - begin,)


class WeightSlice(WeightMath):
    """A range of the elements of a weight, updated by its owner.

    It has the weight's shape if it is the whole weight, the shape of some rows if it begins and ends at rows' borders,
    and is flat otherwise.

    Args:
        variable: a Keras or TensorFlow variable with a component for each local replica.
        begin: the first element.
        end: the element after the last one.
        rank: the process that owns it.
        replicas: the local replicas on whose devices it is updated, one for each group of replicas that share the
            update; empty if another process owns it.
        is_shard: True if it is all that its owner's device stores of the weight.
        whole_on_owner: for each of `replicas` a variable with all elements of a weight that is stored in shards; None
            if the weight is updated where it is stored.
    """

    def __init__(
        self,
        variable: Any,
        begin: int,
        end: int,
        rank: int,
        replicas: Sequence[int],
        *,
        is_shard: bool = False,
        whole_on_owner: Sequence[Any] | None = None,
    ) -> None:
        self.variable = variable
        self.begin, self.end = begin, end
        #: The rank of the owner.
        self.rank = rank
        #: The local replicas on whose devices it is updated; empty if another process owns it.
        self.replicas = tuple(replicas)
        whole = tuple(variable.shape)
        row = math.prod(whole[1:])
        #: The first row, and the one after the last; None if the range does not consist of whole rows.
        self.rows: tuple[int, int] | None = None
        if whole and begin % row == 0 and end % row == 0:
            self.rows = (begin // row, end // row)
        self.is_whole = end - begin == math.prod(whole)
        #: True if its owner's device holds nothing else of the weight.
        self.is_shard = is_shard
        self._whole_on_owner = whole_on_owner
        self.shape = range_shape(whole, begin, end)
        self.dtype = tf.as_dtype(variable.dtype).name
        self.name = str(variable.name)
        self.path = str(getattr(variable, "path", self.name))
        # The id by which Keras' optimizers know a variable.
        self._unique_id = f"{self.path}_{id(self)}"
        #: The weight that it is a range of; set by :func:`sliced`.
        self.whole: WholeOfSlices | None = None
        #: All weights that are partitioned together with it; set by the code that partitions them.
        self.partition: Any = None
        self.trainable = True
        # Applied to the weight when it is whole again.
        self.constraint: Any = None
        self.regularizer: Any = None
        self.overwrite_with_gradient = bool(getattr(variable, "overwrite_with_gradient", False))
        # Inside `beside_weights`: its graph, and by local replica the new elements not yet written to the weight.
        self._graph: Any = None
        self._new: dict[int, tf.Tensor] = {}

    @property
    def is_whole_on_owner(self) -> bool:
        """True if it is the whole of a weight that is sharded over devices."""
        return self._whole_on_owner is not None

    @property
    def is_owned(self) -> bool:
        """True if this process owns it."""
        return bool(self.replicas)

    @property
    def replica(self) -> int:
        """The local replica on whose device the current update is; 0 if another process owns the slice."""
        if len(self.replicas) < 2:
            return self.replicas[0] if self.replicas else 0
        return self.replicas[get_update_replica_id() or 0]

    @property
    def device(self) -> str:
        """The device of the owner; empty if another process owns it."""
        return str(self.component.device) if self.is_owned else ""

    @property
    def component(self) -> Any:
        """The TensorFlow variable, on the owner's device, that contains the slice.

        If another process owns it, the first replica's variable: between updates all have the same elements.
        """
        if self._whole_on_owner:
            return self._whole_on_owner[self.replicas.index(self.replica)]
        variable = getattr(self.variable, "value", None) if not isinstance(self.variable, tf.Variable) else None
        distributed = self.variable if variable is None else variable
        return distributed.values[self.replica]

    def on_replica(self, replica: int) -> WeightSlice:
        """Returns a slice of the same elements on the device of another local replica."""
        return WeightSlice(self.variable, self.begin, self.end, self.rank, (replica,))

    def select(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the slice's elements of a tensor that has the weight's shape, in the slice's shape."""
        if self.is_whole:
            return tensor
        if self.rows is not None:
            return tensor[self.rows[0] : self.rows[1]]
        return tf.reshape(tensor, [-1])[self.begin : self.end]

    def select_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the slice's part of a sparse gradient: slices of rows, or of single elements if it has no whole rows.

        Several slices of one row stay separate, as Keras' optimizers and norms see them on one device.
        """
        if self.is_whole:
            return slices
        values, indices = slices.values, tf.cast(slices.indices, tf.int64)
        first, end = self.rows or (self.begin, self.end)
        if self.rows is None:
            row = math.prod(tuple(self.variable.shape)[1:])
            indices = tf.reshape(indices[:, tf.newaxis] * row + tf.range(row, dtype=tf.int64), [-1])
            values = tf.reshape(values, [-1])
        mine = tf.logical_and(indices >= first, indices < end)
        shape = tf.constant(self.shape, tf.int64)
        return tf.IndexedSlices(tf.boolean_mask(values, mine), tf.boolean_mask(indices, mine) - first, shape)

    def read(self) -> tf.Tensor:
        """Returns its elements; zeros if they are in another process only."""
        if self.replica in self._new:
            return self._new[self.replica]
        if not self.is_owned and (self.is_shard or self.is_whole_on_owner):
            return tf.zeros(self.shape, self.dtype)
        component = self.component
        with tf.device(component.device):
            value = component.read_value()
            return value if self.is_shard else self.select(value)

    def assign(self, value: Any) -> None:
        """Sets its elements on the owner's device; does nothing if another process owns it."""
        if not self.is_owned:
            return
        component = self.component
        with tf.device(component.device):
            tensor = tf.cast(value, component.dtype)
            if self.is_whole or self.is_shard:
                component.assign(tensor, read_value=False)
            elif self._graph is not None and self._graph is tf.compat.v1.get_default_graph():
                self._new[self.replica] = tf.reshape(tensor, self.shape)
            else:
                self._settle()
                self._set_range(tensor)

    def _set_range(self, tensor: tf.Tensor) -> None:
        # TensorFlow's assignment to a range is avoided: it takes ten times as long as a copy of the whole, and after it
        # every read of the variable is a copy.
        component = self.component
        flat = tf.reshape(component.read_value(), [-1])
        parts = [flat[: self.begin], tf.reshape(tensor, [-1]), flat[self.end :]]
        component.assign(tf.reshape(tf.concat(parts, 0), component.shape), read_value=False)

    def _settle(self) -> None:
        """Writes the new elements that are kept in tensors to the weight, in the graph of the update."""
        new = self._new.pop(self.replica, None)
        if new is not None:
            graph = contextlib.nullcontext() if tf.executing_eagerly() else self._graph.as_default()
            with graph, tf.device(self.device):
                self._set_range(new)

    def assign_add(self, value: Any) -> None:
        """Adds to its elements."""
        self.assign(self.read() + tf.cast(value, self.dtype))

    def assign_sub(self, value: Any) -> None:
        """Subtracts from its elements."""
        if not (self.is_whole or self.is_shard):
            self.assign(self.read() - tf.cast(value, self.dtype))
        elif self.is_owned:
            with tf.device(self.device):
                self.component.assign_sub(tf.cast(value, self.dtype), read_value=False)

    def scatter_sub(self, slices: tf.IndexedSlices) -> None:
        """Subtracts a sparse gradient."""
        self._scatter(slices, "sub")

    def scatter_add(self, slices: tf.IndexedSlices) -> None:
        """Adds a sparse gradient."""
        self._scatter(slices, "add")

    def scatter_update(self, slices: tf.IndexedSlices) -> None:
        """Sets the rows, or elements, that the slices' indices select."""
        self._scatter(slices, "update")

    def _scatter(self, slices: tf.IndexedSlices, how: str) -> None:
        if self.is_shard:
            with tf.device(self.device):
                getattr(self.component, f"scatter_{how}")(slices)
            return
        indices = slices.indices
        if self.rows is None or self.replica in self._new:
            changed: Callable[..., tf.Tensor] = getattr(tf, f"tensor_scatter_nd_{how}")
            self.assign(changed(self.read(), indices[:, tf.newaxis], slices.values))
            return
        shifted = tf.IndexedSlices(slices.values, indices + tf.cast(self.rows[0], indices.dtype))
        with tf.device(self.device):
            getattr(self.component, f"scatter_{how}")(shifted)

    def __repr__(self) -> str:
        return f"<WeightSlice {self.path!r}[{self.begin}:{self.end}] of rank {self.rank}>"


@contextlib.contextmanager
def beside_weights(slices: Sequence[WeightSlice]) -> Iterator[None]:
    """Context manager: values assigned to ranges are kept in tensors, and not written to the weights.

    It is for an update after which the weights are set from their slices, since writing a range of a weight copies all
    of it. An assignment in a branch of a condition is written to the weight at once.
    """
    graph = tf.compat.v1.get_default_graph()
    for each in slices:
        each._graph = graph
    try:
        yield
    finally:
        for each in slices:
            each._graph, each._new = None, {}


def sliced(variable: Any, slices: Sequence[WeightSlice]) -> None:
    """Joins all slices of a weight, of all owners, into one weight for arrays and files.

    Args:
        variable: the weight.
        slices: the slices in the order of the weight's elements, all of which they contain.
    """
    whole = WholeOfSlices(slices[0].path, tuple(variable.shape), [each.end - each.begin for each in slices])
    whole.variable, whole.is_inner = variable, weight_of(variable) is not None
    for each in slices:
        whole.add(each)
        each.whole = whole
