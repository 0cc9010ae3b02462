"""Models that compute each row of their output, and its loss, from the same row of their input and of nothing else.

To such a model rows can be added that count for nothing. Only what is known to be of that kind is: models of Keras' own
layers and losses. In training neither BatchNormalization, which looks at all rows, nor Dropout, whose draws depend on
the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
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
_LOSSES = frozenset(
    {
        *(keras.losses.binary_crossentropy, keras.losses.categorical_crossentropy),
        *(keras.losses.sparse_categorical_crossentropy, keras.losses.binary_focal_crossentropy),
        *(keras.losses.mean_squared_error, keras.losses.mean_absolute_error, keras.losses.huber),
        *(keras.losses.mean_absolute_percentage_error, keras.losses.mean_squared_logarithmic_error),
        *(keras.losses.hinge, keras.losses.squared_hinge, keras.losses.categorical_hinge),
        *(keras.losses.log_cosh, keras.losses.poisson, keras.losses.kl_divergence),
    }
)
_MODELS = (keras.Sequential, Functional)
_REDUCTIONS = ("mean", "sum", "sum_over_batch_size")


def is_row_wise(model: keras.Model, *, training: bool) -> bool:
    """True if `model` and the losses that it was compiled with are known to be of that kind."""
    known = _LAYERS if training else _LAYERS | _NOT_IN_TRAINING
    return _has_only(model, known) and all(map(_is_known, keras.tree.flatten(model.loss)))


def _has_only(model: keras.Model, known: Iterable[type]) -> bool:
    if type(model) not in _MODELS:
        return False
    # Of a functional model, the operations between its layers as well.
    parts = model.operations if isinstance(model, Functional) else model.layers
    for part in parts:
        if isinstance(part, keras.Model):
            if not _has_only(part, known):
                return False
        elif type(part) not in known or _looks_across(part):
            return False
    return True


def _looks_across(layer: Any) -> bool:
    axis = getattr(layer, "axis", None)
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    return 0 in axes or getattr(layer, "activity_regularizer", None) is not None


def _is_known(loss: Any) -> bool:
    if loss is None:
        return True
    loss = keras.losses.get(loss)
    if not isinstance(loss, keras.Loss):
        return loss in _LOSSES
    return getattr(loss, "fn", None) in _LOSSES and loss.reduction in _REDUCTIONS and not _looks_across(loss)
