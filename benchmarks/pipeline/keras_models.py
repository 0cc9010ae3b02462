"""The Keras models of all parts, with data for them. A stage may begin at the layers called `unit_<n>`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from pipeline.cases import Case
from pipeline.sizes import LENGTH, NUM_CHANNELS, NUM_DENSE, NUM_HEADS, NUM_LARGE, VOCABULARY, WIDTH, bounds
from pipeline.sleeping import Sleep

L = keras.layers
FLOAT_BYTES = 4


def make_model(part: str, case: Case) -> Any:
    """Returns the plain model, not compiled."""
    if part == "trace":
        return _transformer(case)
    if part == "memory":
        x = keras.Input((_positions(case), 1))
        layers = [L.Dense(NUM_CHANNELS, activation="tanh", name=f"unit_{i}") for i in range(NUM_LARGE)]
        # The loss gets a small tensor: only activations between layers should be measured.
        layers += [L.GlobalAveragePooling1D(), L.Dense(1)]
    elif part == "sleep":
        x = keras.Input((1,))
        layers = [Sleep(case.size / 1e3, name=f"unit_{i}") for i in range(case.num_stages)]
    else:
        x = keras.Input((int(case.size),))
        layers = [L.Dense(int(case.size), activation="relu", name=f"unit_{i}") for i in range(NUM_DENSE)]
    h = x
    for layer in layers:
        h = layer(h)
    return keras.Model(x, h)


def loss(part: str) -> Any:
    """Returns the loss that trains the model."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True) if part == "trace" else "mse"


def cuts(part: str, case: Case) -> list[str]:
    """Returns the names of the layers at which stages begin, without that of the first stage."""
    counts = {"memory": NUM_LARGE, "sleep": case.num_stages, "trace": int(case.size)}
    return [f"unit_{start}" for start in bounds(counts.get(part, NUM_DENSE), case.num_stages)[1:-1]]


def data(part: str, case: Case) -> tuple[Any, Any]:
    """Returns a batch: inputs and targets."""
    draw = np.random.default_rng(0)
    if part == "trace":
        x, y = draw.integers(0, VOCABULARY, (2, case.batch_size, LENGTH), dtype=np.int32)
        return x, y
    row = {"memory": (_positions(case), 1), "sleep": (1,)}.get(part, (int(case.size),))
    wanted = (1,) if part == "memory" else row
    x, y = (draw.standard_normal((case.batch_size, *shape), dtype=np.float32) for shape in (row, wanted))
    return x, y


def _positions(case: Case) -> int:
    """Returns the number of positions for which the outputs of all large layers together have `case.size` megabytes."""
    return max(1, round(case.size * 1e6 / (NUM_LARGE * case.batch_size * NUM_CHANNELS * FLOAT_BYTES)))


def _transformer(case: Case) -> Any:
    """Returns pre-norm transformer blocks between an embedding and logits for each position."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    h = L.Embedding(VOCABULARY, WIDTH, name="embedding")(tokens)
    for index in range(int(case.size)):
        n = L.LayerNormalization(name=f"unit_{index}")(h)
        h = L.Add()([h, L.MultiHeadAttention(NUM_HEADS, WIDTH // NUM_HEADS)(n, n, use_causal_mask=True)])
        n = L.LayerNormalization()(h)
        h = L.Add()([h, L.Dense(WIDTH)(L.Dense(4 * WIDTH, activation="gelu")(n))])
    return keras.Model(tokens, L.Dense(VOCABULARY, name="logits")(L.LayerNormalization(name="last_norm")(h)))
