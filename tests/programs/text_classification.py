"""Text classification with a transformer: padded arrays of tokens, one block, the mean over time.

Changed for comparison: Dropout drops nothing, and Adam has a larger epsilon, since it divides by the gradients of
attention's key biases, which are rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

from tests.programs.transformers import TokenAndPositionEmbedding, TransformerBlock
from tests.strategies.parity.harness import Case, Model, fit_arrays

L = keras.layers
VOCAB_SIZE, MAXLEN, EMBED_DIM, NUM_HEADS, FF_DIM = 25, 7, 8, 2, 8


def reviews(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = [list(rng.integers(1, VOCAB_SIZE, rng.integers(3, 10))) for _ in range(count)]
    return keras.utils.pad_sequences(tokens, maxlen=MAXLEN), rng.integers(0, 2, count)


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    inputs = keras.Input(shape=(MAXLEN,))
    x = TokenAndPositionEmbedding(MAXLEN, VOCAB_SIZE, EMBED_DIM)(inputs)
    x = TransformerBlock(EMBED_DIM, NUM_HEADS, FF_DIM)(x)
    x = L.Dropout(0.0)(L.GlobalAveragePooling1D()(x))
    x = L.Dropout(0.0)(L.Dense(6, activation="relu")(x))
    model = place(keras.Model(inputs=inputs, outputs=L.Dense(2, activation="softmax")(x)))
    model.compile(keras.optimizers.Adam(epsilon=1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


CASE = Case(
    "text classification with a transformer",
    make,
    fit_arrays(*reviews(19, seed=2), batch_size=8, epochs=2, validation_data=reviews(5, seed=3)),
)
