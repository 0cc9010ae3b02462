"""Sharded weights in graphs outside of steps, and in the SavedModels that TensorFlow makes of such graphs.

A SavedModel has one variable for all components of a distributed one: each handle that a graph captures becomes the
handle of that variable. For a sharded weight, that variable is the whole weight. A graph outside of a step therefore
reads shards such that the result is the weight in both places: from shards in this process, from the whole in the file.

The contract is tested in ``tests/strategies/saving/test_exports.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import UninitializedVariable, handle_data_util
from strategies.replica.deferred import is_remote


class CapturedShard(tf.__internal__.tracking.Trackable):
    """A shard among a graph's variables: code that freezes the graph reads the shard, code that saves it the weight.

    Args:
        weight: the ``ShardedVariable``.
        component: its shard on a device.
    """

    def __init__(self, weight: Any, component: Any) -> None:
        self._weight = weight
        self._component = component
        #: No gradients are taken with respect to shards.
        self.trainable = False

    @property
    def handle(self) -> Any:
        """The shard's handle."""
        return self._component.handle

    @property
    def name(self) -> str:
        """The shard's name."""
        return str(self._component.name)

    @property
    def dtype(self) -> tf.DType:
        """The weight's dtype."""
        return self._component.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shard's shape."""
        return self._component.shape

    def numpy(self) -> np.ndarray:
        """Returns the elements of the shard."""
        return np.asarray(self._component.numpy())

    def read_value(self) -> tf.Tensor:
        """Returns the elements of the shard."""
        return self._component.read_value()

    def read_value_no_copy(self) -> tf.Tensor:
        """Returns the elements of the shard without a copy: they are valid until the shard is written."""
        return self._component.read_value_no_copy()

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return {"weight": self._weight}


def whole_in_file(variable: Any) -> tf.Tensor:
    """Returns the whole weight in a graph: from its shards, or in a file from the one variable that replaces them.

    The length of each part is computed when the graph runs: in a file, the first read returns all elements, and the
    other parts are empty.

    Args:
        variable: a ``ShardedVariable`` of which this process holds all shards.
    """
    graph = tf.compat.v1.get_default_graph()
    missing = tf.constant(variable.shape.num_elements())
    parts = []
    for _, shard in sorted(captured_shards(variable).items()):
        handle = graph.capture(shard.handle)
        _forget_shape(handle)
        graph.watch_variable(shard)
        flat = tf.reshape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype), [-1])
        length = tf.minimum(tf.size(flat), missing)
        parts.append(tf.slice(flat, [0], [length]))
        missing -= length
    return tf.reshape(tf.concat(parts, 0), variable.shape)


def captured_shards(variable: Any) -> dict[int, CapturedShard]:
    """Returns each owner's shard as graphs capture it; the variable keeps these objects alive, since graphs do not."""
    found: dict[int, CapturedShard] | None = variable.captured
    if found is None:
        owners = zip(variable.owners, variable.values, strict=True)
        found = variable.captured = {owner: CapturedShard(variable, component) for owner, component in owners}
    return found


def owns_all(variable: Any) -> bool:
    """Returns True if this process holds all elements of a TensorFlow variable.

    Each process may hold some shards of a sharded weight; where a replica spans processes, each has its own variables.
    """
    owners, ranges = getattr(variable, "owners", ()), getattr(variable, "bounds", ())
    others = [owner for owner, (begin, end) in enumerate(ranges) if begin < end and owner not in owners]
    return not others and not is_remote(variable)


def check_exported(variable: Any) -> None:
    """Raises a ``ValueError`` if other processes hold elements of a variable that is to be in a SavedModel."""
    if not owns_all(variable):
        raise ValueError(
            f"Other processes own {variable.name!r}, or shards of it: one process cannot write it to a file of "
            "TensorFlow. Call model.export(path) on all ranks, which writes the whole model; or save it, and "
            "continue in a separate process, without a strategy: model.save('model.keras') on all ranks, then "
            "keras.saving.load_model('model.keras')."
        )


def _forget_shape(handle: tf.Tensor) -> None:
    """Sets the variable's shape of a captured handle to unknown: in a file the variable has another shape."""
    data = handle_data_util.get_resource_handle_data(handle)
    for each in data.shape_and_type:
        each.shape.Clear()
        each.shape.unknown_rank = True
    handle_data_util.set_handle_data(handle, data)


def export_whole(variable: Any, object_map: Any, tensor_map: Any) -> list[Any]:
    """Maps a sharded weight and its components to one whole variable in the graph of a file.

    Args:
        variable: a ``ShardedVariable``.
        object_map: maps objects to their counterparts in the graph; the whole variable is added.
        tensor_map: maps tensors to their counterparts in the graph; the whole variable's handle is added.

    Returns:
        The resources that were mapped.

    Raises:
        ValueError: if other processes hold shards.
    """
    check_exported(variable)
    whole = object_map.get(variable)
    if whole is None:
        whole = UninitializedVariable(
            trainable=variable.trainable,
            shape=variable.shape,
            dtype=variable.dtype,
            name=str(variable.name).partition(":")[0],
            synchronization=variable.synchronization,
            aggregation=variable.aggregation,
        )
    for each in (variable, *variable.values):
        object_map[each] = whole
    for component in variable.values:
        tensor_map[component.handle] = whole.handle
    tensor_map[variable] = whole.handle
    return [*(component.handle for component in variable.values), variable]
