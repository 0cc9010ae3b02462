"""Functions of Keras' backend: sizes mark numbers of rows, a parameter device looks up rows, layers are recomputed.

- ``shape``, and ``tf.size``: a replica's number of rows, where it is static, is marked as a number of rows.
- ``take``, which `keras.layers.Embedding` calls: of a table on a parameter device, only rows leave that device. Keras
  reads the whole table on the replica's device, then takes the rows. On one device that costs nothing; here it would
  copy the table to each compute device in each step, and need memory for it there.
- ``remat``, of layers made under a ``keras.RematScope``: the backward pass recomputes them with the same state and
  seeds. Keras 3.15 passes the call of such a layer to ``tf.recompute_grad``, which takes no keyword arguments in a
  graph, so that ``fit`` fails for all layers with a ``training`` argument; and recomputation draws new random numbers,
  so that the gradient belongs to another Dropout mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import in_stateless_scope, tf_numpy
from strategies._keras_hooks.keras_versions import REMAT_MODULE, SHAPE_MODULES
from strategies._keras_hooks.wrapping import wrap
from strategies.batches import shares
from strategies.batches.row_counts import RowCount
from strategies.engine.engine import engine_of
from strategies.replica.row_exchange import lie_on_replicas
from strategies.steps.central import CentralVariable


def install() -> None:
    """Wraps the reading of shapes and sizes, ``take`` and ``remat``."""
    for module in SHAPE_MODULES:
        wrap(module, "shape", _shape)
    wrap(tf, "size", _size)
    wrap(tf_numpy, "take", _take)
    wrap(REMAT_MODULE, "remat", _remat)


def _shape(original: Callable[[Any], Any], x: Any) -> Any:
    found = original(x)
    share = shares.current()
    if share is None or not share.in_trainer or share.num_replicas == 1:
        return found
    is_known = isinstance(found, tuple) and found and isinstance(found[0], int)
    if is_known and isinstance(x, tf.Tensor) and found[0] in share.num_rows:
        return (RowCount.from_first_dim(x), *found[1:])
    return found


def _size(original: Callable[..., Any], input: Any, out_type: tf.DType | None = None, name: str | None = None) -> Any:
    share = shares.current()
    if share is None or not share.in_trainer or share.num_replicas == 1 or not isinstance(input, tf.Tensor):
        return original(input, out_type, name)
    # With a static shape TensorFlow would return a constant, which does not show whose size it is.
    return tf.raw_ops.Size(input=input, out_type=out_type or tf.int32, name=name)


def _take(original: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    table = x
    if isinstance(x, keras.Variable) and not in_stateless_scope():
        table = x._value
    if not isinstance(table, CentralVariable) or axis != 0 or isinstance(indices, (tf.SparseTensor, tf.RaggedTensor)):
        return original(x, indices, axis)
    positions = tf.convert_to_tensor(indices)
    # As in Keras: negative indices count from the end.
    positions = tf.where(positions < 0, positions + tf.cast(table.shape[0], positions.dtype), positions)
    rows = table.sparse_read(positions)
    # In mixed precision Keras casts the table. Casting the rows gives the same.
    return tf.cast(rows, x.dtype) if isinstance(x, keras.Variable) else rows


def _remat(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    if engine_of(tf.distribute.get_strategy()) is None:
        return original(function)
    # A layer's call may change its non-trainable variables, such as seeds; an activation function changes none.
    layer = getattr(function, "__self__", None)
    trained = {id(variable) for variable in layer.trainable_variables} if isinstance(layer, keras.Layer) else set()
    changing = [v for v in layer.variables if id(v) not in trained] if isinstance(layer, keras.Layer) else []

    def computed(*args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, keras.Layer) and lie_on_replicas(layer.variables):
            raise ValueError(
                "A layer that runs a collective over replicas cannot be recomputed in the backward pass: its "
                "weights are those of experts, or of a ShardedEmbedding. Make it outside of the RematScope, or use "
                f"a mesh without 'expert'. Received: {layer.name!r}."
            )
        before = [(variable, tf.stop_gradient(variable.value)) for variable in changing]
        is_recomputation = False

        def compute(*tensors: Any) -> Any:
            nonlocal is_recomputation
            if not is_recomputation:
                is_recomputation = True
                return function(*tensors, **kwargs)
            with keras.StatelessScope(before):
                return function(*tensors, **kwargs)

        return original(compute)(*args)

    return computed
