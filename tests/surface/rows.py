"""The rows of the grid: every layer of `keras.layers` that has weights, in a size that trains quickly.

The list of names comes from Keras: a class that a new release adds is in none of the tables below, and a test fails for
every name that `unknown` returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.releases import is_there

LENGTH, CHANNELS, SIDE, VOCABULARY = 4, 8, 6, 12


@dataclass(frozen=True)
class Row:
    """A layer under test.

    Attributes:
        make: makes the layer; takes further arguments of its constructor.
        shape: shape of one row of the input.
        whole_numbers: whether the input is ids, below `VOCABULARY`.
        called: calls the layer on its input, where that takes more than ``layer(x)``.
        learns: whether the layer has to adapt to data before it is used.
        without: columns that cannot be compared, by name, with the reason.
    """

    make: Callable[..., Any]
    shape: tuple[int, ...]
    whole_numbers: bool = False
    called: Callable[[Any, Any], Any] = field(default=lambda layer, x: layer(x))
    learns: bool = False
    without: Mapping[str, str] = field(default_factory=dict)


def _twice(layer: Any, x: Any) -> Any:
    return layer(x, x)


def _reversed(layer: Any, x: Any) -> Any:
    return layer(layer(x), reverse=True)


def _listed(layer: Any, x: Any) -> Any:
    return layer([x, x])


_SEQUENCE, _IMAGE = (LENGTH, CHANNELS), (SIDE, SIDE, 4)
_VOLUME = (4, 4, 4, 2)

#: Rows by the name of the layer's class.
ROWS: Mapping[str, Row] = {
    "AdditiveAttention": Row(layers.AdditiveAttention, _SEQUENCE, called=_listed),
    "Attention": Row(lambda **own: layers.Attention(use_scale=True, **own), _SEQUENCE, called=_listed),
    "BatchNormalization": Row(lambda **own: layers.BatchNormalization(synchronized=True, **own), (CHANNELS,)),
    "Bidirectional": Row(lambda **own: layers.Bidirectional(layers.GRU(4), **own), _SEQUENCE),
    "Conv1D": Row(lambda **own: layers.Conv1D(8, 3, padding="same", **own), _SEQUENCE),
    "Conv1DTranspose": Row(lambda **own: layers.Conv1DTranspose(8, 3, padding="same", **own), _SEQUENCE),
    "Conv2D": Row(lambda **own: layers.Conv2D(4, 3, padding="same", **own), _IMAGE),
    "Conv2DTranspose": Row(lambda **own: layers.Conv2DTranspose(4, 3, padding="same", **own), _IMAGE),
    "Conv3D": Row(lambda **own: layers.Conv3D(2, 3, padding="same", **own), _VOLUME),
    "Conv3DTranspose": Row(lambda **own: layers.Conv3DTranspose(2, 3, padding="same", **own), _VOLUME),
    "ConvLSTM1D": Row(lambda **own: layers.ConvLSTM1D(2, 3, **own), (3, 6, 2)),
    "ConvLSTM2D": Row(lambda **own: layers.ConvLSTM2D(2, 3, **own), (3, 4, 4, 2)),
    "ConvLSTM3D": Row(lambda **own: layers.ConvLSTM3D(2, 2, **own), (2, 3, 3, 3, 2)),
    "Dense": Row(lambda **own: layers.Dense(8, "tanh", **own), (CHANNELS,)),
    "DepthwiseConv1D": Row(lambda **own: layers.DepthwiseConv1D(3, padding="same", **own), _SEQUENCE),
    "DepthwiseConv2D": Row(lambda **own: layers.DepthwiseConv2D(3, padding="same", **own), _IMAGE),
    "EinsumDense": Row(
        lambda **own: layers.EinsumDense("abc,cd->abd", output_shape=(LENGTH, 8), bias_axes="d", **own), _SEQUENCE
    ),
    "Embedding": Row(lambda **own: layers.Embedding(VOCABULARY, CHANNELS, **own), (LENGTH,), whole_numbers=True),
    "GRU": Row(lambda **own: layers.GRU(4, **own), _SEQUENCE),
    "GRUCell": Row(lambda **own: layers.RNN(layers.GRUCell(4, **own)), _SEQUENCE),
    "GroupNormalization": Row(lambda **own: layers.GroupNormalization(2, **own), _SEQUENCE),
    "GroupQueryAttention": Row(lambda **own: layers.GroupQueryAttention(4, 4, 2, **own), _SEQUENCE, called=_twice),
    "LSTM": Row(lambda **own: layers.LSTM(4, **own), _SEQUENCE),
    "LSTMCell": Row(lambda **own: layers.RNN(layers.LSTMCell(4, **own)), _SEQUENCE),
    "LayerNormalization": Row(layers.LayerNormalization, _SEQUENCE),
    "MultiHeadAttention": Row(lambda **own: layers.MultiHeadAttention(2, 4, **own), _SEQUENCE, called=_twice),
    "Normalization": Row(layers.Normalization, (CHANNELS,), learns=True),
    "PReLU": Row(layers.PReLU, _SEQUENCE),
    "RMSNormalization": Row(layers.RMSNormalization, _SEQUENCE),
    "RNN": Row(lambda **own: layers.RNN(layers.SimpleRNNCell(4), **own), _SEQUENCE),
    "ReversibleEmbedding": Row(
        lambda **own: layers.ReversibleEmbedding(VOCABULARY, CHANNELS, **own),
        (LENGTH,),
        whole_numbers=True,
        called=_reversed,
    ),
    "STFTSpectrogram": Row(
        lambda **own: layers.STFTSpectrogram(mode="real", frame_length=8, frame_step=4, fft_length=8, **own), (24, 1)
    ),
    "SeparableConv1D": Row(lambda **own: layers.SeparableConv1D(8, 3, padding="same", **own), _SEQUENCE),
    "SeparableConv2D": Row(lambda **own: layers.SeparableConv2D(4, 3, padding="same", **own), _IMAGE),
    "SimpleRNN": Row(lambda **own: layers.SimpleRNN(4, **own), _SEQUENCE),
    "SimpleRNNCell": Row(lambda **own: layers.RNN(layers.SimpleRNNCell(4, **own)), _SEQUENCE),
    "SpectralNormalization": Row(lambda **own: layers.SpectralNormalization(layers.Dense(8), **own), (CHANNELS,)),
    "StackedRNNCells": Row(
        lambda **own: layers.RNN(layers.StackedRNNCells([layers.GRUCell(4), layers.SimpleRNNCell(4)], **own)),
        _SEQUENCE,
    ),
    "TimeDistributed": Row(
        lambda **own: layers.TimeDistributed(layers.Dense(8), **own),
        _SEQUENCE,
        # Predictions of this model change from 0.33 to 78 when it is quantized, and those of batches of 2 rows differ
        # from those of 4 by 2e-6.
        without={"int8": "plain Keras computes something else in an int8 layer inside TimeDistributed, up to rounding"},
    ),
}
if is_there("TernaryDense"):
    ROWS = {**ROWS, "TernaryDense": Row(lambda **own: layers.TernaryDense(8, **own), (CHANNELS,))}

#: Layers with weights that have no row, each with the reason.
LEFT_OUT: Mapping[str, str] = {
    "FlaxLayer": "Keras refuses it on the TensorFlow backend",
    "JaxLayer": "it wants JAX beside TensorFlow, to which it is converted",
    "Layer": "the base of all others",
    "Pipeline": "it has no weights but those of the layers in it",
    "TFSMLayer": "its weights are a file's, which it has to be made with; saving has tests of its own",
    "TorchModuleWrapper": "Keras refuses it on the TensorFlow backend",
    "Wrapper": "the base of wrappers",
    "Discretization": "its bins are no weights; inputs of preprocessing layers have tests of their own",
    "TextVectorization": "its vocabulary is no weight; preprocessing layers have tests of their own",
    "StringLookup": "its vocabulary is no weight; preprocessing layers have tests of their own",
    "IntegerLookup": "its vocabulary is no weight; preprocessing layers have tests of their own",
}


def names() -> list[str]:
    """Returns the names of the layers of Keras, one for each class."""
    found: dict[type, str] = {}
    for name in sorted(vars(layers)):
        value = getattr(layers, name)
        if isinstance(value, type) and issubclass(value, keras.Layer) and found.get(value) not in ROWS:
            # Keras 3.16 has two names for GroupQueryAttention.
            other = value.__name__ if hasattr(layers, value.__name__) else name
            found[value] = name if name in ROWS else other
    return sorted(found.values())


def has_weights(name: str) -> bool:
    """Returns False for a layer that, made without arguments or with numbers, is built of nothing that can be a weight.

    A class has weights if its source, or that of a base, adds some or holds other layers.
    """
    cls = getattr(layers, name)
    bases = [base for base in cls.__mro__ if issubclass(base, keras.Layer) and base is not keras.Layer]
    # Preprocessing layers that change images have only seeds.
    text = "".join(inspect.getsource(base) for base in bases if "BaseImagePreprocessingLayer" not in base.__name__)
    return any(sign in text for sign in ("add_weight(", "add_variable(", "self.layer =", "self.cell =", "self.cells ="))


def unknown() -> list[str]:
    """Returns the names of layers with weights that have neither a row nor a reason to have none."""
    return [name for name in names() if name not in ROWS and name not in LEFT_OUT and has_weights(name)]


def data(row: Row, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs for a layer, and targets of shape (num_rows, 2)."""
    random = np.random.default_rng(3)
    if row.whole_numbers:
        x = random.integers(0, VOCABULARY, (num_rows, *row.shape)).astype("int32")
    else:
        x = random.standard_normal((num_rows, *row.shape)).astype("float32")
    return x, random.standard_normal((num_rows, 2)).astype("float32")
