"""Parity layer by layer: layers with state, with sparse gradients, with recurrence, with attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tests.strategies.parity.harness import NUM_ROWS, Case, Model, features, fit_arrays, labels

L = keras.layers


def on_sequences(*layers: Callable[[], Any]) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential([keras.Input((5, 4)), *(layer() for layer in layers), L.Flatten(), L.Dense(3)])
        model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return make


def on_images(*layers: Callable[[], Any]) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), *(layer() for layer in layers), L.GlobalAveragePooling2D(), L.Dense(3)]
        )
        model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return make


def attention() -> Model:
    x = keras.Input((5, 4))
    attended = L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(L.Add()([x, attended]))
    model = keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)))
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


sequences = fit_arrays(features(NUM_ROWS, 5, 4), labels())
images = fit_arrays(features(NUM_ROWS, 8, 8, 3), labels())

CASES = [
    Case(
        "BatchNormalization(synchronized=True)",
        on_images(lambda: L.BatchNormalization(synchronized=True)),
        images,
    ),
    Case("Conv2D, pooling", on_images(lambda: L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D), images),
    Case(
        "SeparableConv2D, GroupNormalization",
        on_images(lambda: L.SeparableConv2D(6, 3), lambda: L.GroupNormalization(2)),
        images,
    ),
    Case("SpectralNormalization", on_images(lambda: L.SpectralNormalization(L.Conv2D(4, 3))), images),
    Case("Dropout(0)", on_sequences(lambda: L.Dropout(0.0)), sequences),
    Case("LSTM", on_sequences(lambda: L.LSTM(4, return_sequences=True)), sequences),
    Case(
        "GRU, bidirectional",
        on_sequences(lambda: L.Bidirectional(L.GRU(3, return_sequences=True))),
        sequences,
    ),
    Case(
        "LayerNormalization, UnitNormalization",
        on_sequences(L.LayerNormalization, L.UnitNormalization),
        sequences,
    ),
    Case("MultiHeadAttention, causal", attention, sequences),
]
