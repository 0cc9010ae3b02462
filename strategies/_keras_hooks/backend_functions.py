"""Functions of Keras' backend: sizes mark numbers of rows, a parameter device looks up rows, layers are recomputed.

- ``shape``, ``tf.shape``, ``tf.size`` and ``tf.ones_like``: a number of rows, or a one per row, is known as that, too,
  where the shape is static and TensorFlow makes a constant.
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
from strategies.batches.graph_nodes import note_source
from strategies.batches.row_counts import RowCount
from strategies.engine.engine import engine_of
from strategies.replica.row_exchange import lie_on_replicas
from strategies.steps.central import CentralVariable


def install() -> None:
    """Wraps the reading of shapes and sizes, ``take`` and ``remat``."""
    for module in SHAPE_MODULES:
        wrap(module, "shape", _shape)
    wrap(tf, "ones_like", _ones_like)
    wrap(tf, "shape", _tf_shape)
    wrap(tf, "size", _tf_size)
    wrap(tf_numpy, "take", _take)
    wrap(REMAT_MODULE, "remat", _remat)


def _shape(original: Callable[[Any], Any], x: Any) -> Any:
    found = original(x)
    share = _share_of_step()
    if share is None:
        return found
    is_known = isinstance(found, tuple) and found and isinstance(found[0], int)
    if is_known and isinstance(x, tf.Tensor) and found[0] in share.num_rows:
        return (RowCount.from_first_dim(x), *found[1:])
    return found


def _tf_shape(original: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    return _with_source(original(input, *args, **kwargs), "Shape", input)


def _tf_size(
    original: Callable[..., Any], input: Any, out_type: tf.DType | None = None, name: str | None = None
) -> Any:
    if tf.executing_eagerly() and isinstance(input, tf.Tensor) and _share_of_step() is not None:
        # TensorFlow would count in Python, so that no op shows whose size it is.
        return tf.raw_ops.Size(input=input, out_type=out_type or tf.int32, name=name)
    return _with_source(original(input, out_type, name), "Size", input)


def _ones_like(original: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    return _with_source(original(input, *args, **kwargs), "OnesLike", input)


def _with_source(found: Any, op_type: str, tensor: Any) -> Any:
    """Records which tensor a constant was made for: TensorFlow makes constants where shapes are static."""
    is_in_graph = isinstance(tensor, tf.Tensor) and isinstance(found, tf.Tensor) and not hasattr(found, "numpy")
    if is_in_graph and found.op.type == "Const" and _share_of_step() is not None:
        note_source(found, op_type, tensor)
    return found


def _share_of_step() -> shares.Share | None:
    """Returns the share of the replica whose step is running; None outside of trainers' steps, and for one replica."""
    share = shares.current()
    return share if share is not None and share.in_trainer and share.num_replicas > 1 else None


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
