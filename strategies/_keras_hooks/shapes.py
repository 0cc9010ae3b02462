"""Infers the shapes and dtypes that Keras would compute, so that errors about them are raised on every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks import agreement
from strategies._keras_hooks.addresses import backend
from strategies.batches import shares

#: A placeholder for an unknown number of rows. It is a prime and not a usual size of a tensor, so no other size equals
#: it by chance, and a size that is n times this number is n times the number of rows.
SYMBOLIC_ROWS = 7919


def check_ahead(model: keras.Model, batch: Any) -> None:
    """Calls ``check_batch`` of a model, if it has one, before the first step with batches of these shapes.

    Args:
        model: the compiled model.
        batch: inputs, labels and weights of rows as the model gets them; tensors, or their specs.
    """
    check = getattr(model, "check_batch", None)
    if check is None:
        return
    known = agreement.compared(model)
    specs = keras.tree.map_structure(_spec, batch)
    if repr(specs) in known:
        return
    with model.distribute_strategy.scope():
        check(specs)
    known.add(repr(specs))


def shapes_of(function: Callable[..., Any], *tensors: Any) -> Any:
    """Returns ``function(*tensors)`` with Keras' symbolic tensors in place of its results; nothing is computed.

    Variables do not change, and need no values; no collective runs. Where the number of rows, the first dimension, is
    unknown, it is `SYMBOLIC_ROWS` in all tensors, so that shapes that do not fit are found.

    Args:
        function: takes tensors of a graph that is discarded.
        *tensors: nests of tensors, of Keras' symbolic tensors, and of None.
    """
    with shares.none():
        return backend.compute_output_spec(function, *keras.tree.map_structure(_symbolic, tensors))


def _spec(value: Any) -> Any:
    return tf.type_spec_from_value(value) if tf.is_tensor(value) or isinstance(value, np.ndarray) else value


def _symbolic(value: Any) -> Any:
    if not (tf.is_tensor(value) or isinstance(value, (tf.TensorSpec, tf.SparseTensorSpec))):
        return value
    shape = tuple(SYMBOLIC_ROWS if size is None and dim == 0 else size for dim, size in enumerate(value.shape))
    return keras.KerasTensor(shape, value.dtype.name, sparse=isinstance(value, (tf.SparseTensor, tf.SparseTensorSpec)))
