"""Shapes and dtypes of what Keras would compute: errors that follow from these come up in every process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend

from strategies.batches import shares

#: Stands for a number of rows that is not known. A prime, and no size that a tensor has otherwise: nothing fits by
#: chance, and a size that is a multiple of it is that multiple of the rows.
SYMBOLIC_ROWS = 7919

# Of models whose stages are in several processes: the batches that were checked since they were compiled.
_checked: weakref.WeakKeyDictionary[keras.Model, set[str]] = weakref.WeakKeyDictionary()


def forget(model: keras.Model) -> None:
    """Has batches checked again: the model is compiled anew."""
    _checked.pop(model, None)


def check_ahead(model: keras.Model, batch: Any) -> None:
    """Has a model check a batch before the first step of its kind, if it has a method ``check_batch``.

    Args:
        model: that is compiled.
        batch: inputs, labels and weights of rows as they are given to the model; tensors, or specs of them.
    """
    check = getattr(model, "check_batch", None)
    if check is None:
        return
    known = _checked.setdefault(model, set())
    specs = keras.tree.map_structure(_spec, batch)
    if repr(specs) in known:
        return
    with model.distribute_strategy.scope():
        check(specs)
    known.add(repr(specs))


def shapes_of(function: Callable[..., Any], *tensors: Any) -> Any:
    """Returns ``function(*tensors)`` with Keras' symbolic tensors in place of its results; nothing is computed.

    Variables keep their values, and need none; no collective runs. Where the number of rows, the first dimension, is
    not known, all tensors are taken to have `SYMBOLIC_ROWS`, so that what does not fit is found.

    Args:
        function: takes tensors of a graph that is thrown away.
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
