"""Detects row-wise models, which compute each row of their output, and its loss, from the same input row alone.

Batches of such a model can be padded with rows that are then ignored. Only models of Keras' own layers, activation
functions and losses, as Keras wrote them, are taken to be row-wise. In training, BatchNormalization is excluded, as it
looks at all rows, and Dropout, as its draws depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras.src.models.functional import Functional

_DIMENSIONS = ("1D", "2D", "3D")
_OF_DIMENSIONS = (
    "AveragePooling",
    "Conv",
    "Cropping",
    "GlobalAveragePooling",
    "GlobalMaxPooling",
    "MaxPooling",
    "UpSampling",
    "ZeroPadding",
)
_NAMES = (
    *("Activation", "ELU", "Identity", "LeakyReLU", "PReLU", "ReLU"),
    *("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract"),
    *("Dense", "Embedding", "Flatten", "GroupNormalization", "InputLayer", "LayerNormalization", "Permute"),
    *("Conv1DTranspose", "Conv2DTranspose", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
    *("RepeatVector", "Rescaling", "Reshape"),
    *(name + dimensions for name in _OF_DIMENSIONS for dimensions in _DIMENSIONS),
)
_LAYERS = frozenset(getattr(keras.layers, name) for name in _NAMES)
_NOT_IN_TRAINING = frozenset(
    {
        keras.layers.BatchNormalization,
        keras.layers.Dropout,
        keras.layers.SpatialDropout1D,
        keras.layers.SpatialDropout2D,
    }
)
_LOSSES = (
    *(keras.losses.binary_crossentropy, keras.losses.categorical_crossentropy),
    *(keras.losses.sparse_categorical_crossentropy, keras.losses.binary_focal_crossentropy),
    *(keras.losses.mean_squared_error, keras.losses.mean_absolute_error, keras.losses.huber),
    *(keras.losses.mean_absolute_percentage_error, keras.losses.mean_squared_logarithmic_error),
    *(keras.losses.hinge, keras.losses.squared_hinge, keras.losses.categorical_hinge),
    *(keras.losses.log_cosh, keras.losses.poisson, keras.losses.kl_divergence),
)
_ACTIVATIONS = tuple(
    getattr(keras.activations, name)
    for name in (
        *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh"),
        *("leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
        *("soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax"),
        *("squareplus", "tanh", "tanh_shrink", "threshold"),
    )
)
_MODELS = (keras.Sequential, Functional)
_REDUCTIONS = ("mean", "sum", "sum_over_batch_size")


def is_row_wise(model: keras.Model, *, training: bool) -> bool:
    """Returns True if `model` and the losses that it was compiled with are known to be row-wise."""
    known = _LAYERS if training else _LAYERS | _NOT_IN_TRAINING
    return _has_only(model, known) and all(map(_is_known, keras.tree.flatten(model.loss)))


def _has_only(model: keras.Model, known: Iterable[type]) -> bool:
    if type(model) not in _MODELS or not _is_as_written(model, "compute_loss"):
        return False
    # A functional model may have operations between its layers.
    parts = model.operations if isinstance(model, Functional) else model.layers
    return all(_is_known_part(part, known) for part in parts)


def _is_known_part(part: Any, known: Iterable[type]) -> bool:
    # An option such as in `layer(x, training=True)`, given while the model is built, also applies in evaluation.
    if any(_options(node) for node in part._inbound_nodes):
        return False
    if isinstance(part, keras.Model):
        return _has_only(part, known)
    return type(part) in known and _is_as_written(part) and not _looks_across(part)


def _is_as_written(part: Any, *methods: str) -> bool:
    """Returns True unless this object replaces a method of Keras, or adds a loss of its outputs."""
    replaced = any(name in vars(part) for name in ("call", *methods))
    return not replaced and getattr(part, "activity_regularizer", None) is None


def _options(node: Any) -> list[Any]:
    """Returns the arguments of a call that are neither tensors nor None nor False."""
    arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    given = [value for value in arguments if not isinstance(value, keras.KerasTensor)]
    return [value for value in given if value is not None and value is not False]


def _looks_across(layer: Any) -> bool:
    if isinstance(layer, keras.layers.InputLayer):
        return False
    # Quantized layers may scale by the largest value in the batch.
    if getattr(layer, "quantization_mode", None) is not None:
        return True
    if not any(getattr(layer, "activation", _ACTIVATIONS[0]) is each for each in _ACTIVATIONS):
        return True
    # A negative axis, which softmax has as well, may be the first one of a tensor with few dimensions.
    ranks = {len(tensor.shape) for node in layer._inbound_nodes for tensor in node.output_tensors}
    smallest = min(ranks, default=0)
    if smallest < 2 or max(np.ndim(getattr(layer, name, 0)) for name in ("scale", "offset")) >= smallest:
        return True
    return any(axis % rank == 0 for axis in _axes(layer) for rank in ranks)


def _axes(layer: Any) -> list[int]:
    axis = getattr(layer, "axis", None)
    return [each for each in (axis if isinstance(axis, (list, tuple)) else [axis]) if each is not None]


def _is_known(loss: Any) -> bool:
    if loss is None:
        return True
    loss = keras.losses.get(loss)
    if not isinstance(loss, keras.Loss):
        return any(loss is each for each in _LOSSES)
    own = type(loss) is getattr(keras.losses, type(loss).__name__, None) and _is_as_written(loss)
    of_rows = any(getattr(loss, "fn", None) is each for each in _LOSSES) and loss.reduction in _REDUCTIONS
    # Outputs have at least two dimensions, so neither axis -1 nor axis 1 is that of the rows.
    return own and of_rows and getattr(loss, "_fn_kwargs", {}).get("axis", -1) in (-1, 1)
