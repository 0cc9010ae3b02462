"""Weights in shards in graphs that are not of a step, and in the files that TensorFlow makes of such graphs.

A file of TensorFlow has one variable for all components of a distributed one: each handle that a graph captures becomes
the handle of that variable. Of a weight in shards it is the whole weight. A graph outside of a step therefore reads
shards so that the result is the weight in both places: from shards here, and from the whole in the file.

Its contract is tested in ``tests/strategies/saving/test_exports.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import UninitializedVariable, handle_data_util
from strategies.replica.deferred import is_remote


class CapturedShard(tf.__internal__.tracking.Trackable):
    """A shard among the variables of a graph: what freezes the graph reads it, what saves the graph finds the weight.

    Args:
        weight: the ``ShardedVariable``.
        component: its shard on a device.
    """

    def __init__(self, weight: Any, component: Any) -> None:
        self._weight = weight
        self._component = component
        #: Gradients are not taken of shards.
        self.trainable = False

    @property
    def handle(self) -> Any:
        """That of the shard."""
        return self._component.handle

    @property
    def name(self) -> str:
        """That of the shard."""
        return str(self._component.name)

    @property
    def dtype(self) -> tf.DType:
        """That of the weight."""
        return self._component.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """That of the shard."""
        return self._component.shape

    def numpy(self) -> np.ndarray:
        """Returns the elements of the shard."""
        return np.asarray(self._component.numpy())

    def read_value(self) -> tf.Tensor:
        """Returns the elements of the shard."""
        return self._component.read_value()

    def read_value_no_copy(self) -> tf.Tensor:
        """Returns the elements of the shard, as long as they do not change."""
        return self._component.read_value_no_copy()

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return {"weight": self._weight}


def whole_in_file(variable: Any) -> tf.Tensor:
    """Returns the whole weight in a graph, from its shards, or from the variable that they are in a file.

    The length of each part is computed when the graph runs: in a file, the first read has all elements, and nothing is
    left for the others.

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
    """Returns a shard of each owner, as graphs have them; graphs do not keep them alive, the variable does."""
    found: dict[int, CapturedShard] | None = variable.captured
    if found is None:
        owners = zip(variable.owners, variable.values, strict=True)
        found = variable.captured = {owner: CapturedShard(variable, component) for owner, component in owners}
    return found


def holds_all(variable: Any) -> bool:
    """True if this process holds all elements of a variable of TensorFlow's.

    Of a weight in shards each process may hold some; where a replica spans processes, each has its own variables.
    """
    owners, ranges = getattr(variable, "owners", ()), getattr(variable, "bounds", ())
    others = [owner for owner, (begin, end) in enumerate(ranges) if begin < end and owner not in owners]
    return not others and not is_remote(variable)


def check_exported(variable: Any) -> None:
    """Raises a ``ValueError`` if other processes hold elements of a variable that is to be in a file of TensorFlow."""
    if not holds_all(variable):
        raise ValueError(
            f"Other processes hold {variable.name!r}, or shards of it: one process cannot write it to a file of "
            "TensorFlow. Call model.export(path) on all ranks, which writes the whole model; or save it, and go on in "
            "a process of its own, without a strategy: model.save('model.keras') on all ranks, then "
            "keras.saving.load_model('model.keras')."
        )


def _forget_shape(handle: tf.Tensor) -> None:
    """Has the graph take the variable of a captured handle for one of unknown shape: in a file it has another."""
    data = handle_data_util.get_resource_handle_data(handle)
    for each in data.shape_and_type:
        each.shape.Clear()
        each.shape.unknown_rank = True
    handle_data_util.set_handle_data(handle, data)


def export_whole(variable: Any, object_map: Any, tensor_map: Any) -> list[Any]:
    """Maps a weight in shards, and its components, to one whole variable in the graph of a file.

    Args:
        variable: a ``ShardedVariable``.
        object_map: from objects to those in the graph; gains the whole variable.
        tensor_map: from tensors to those in the graph; gains its handle.

    Returns:
        The resources that were mapped.

    Raises:
        ValueError: other processes hold shards.
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
