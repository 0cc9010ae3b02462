"""Makes attention layers, plain and split, and models around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_ext.tensor.attention import ParallelGroupQueryAttention, ParallelMultiHeadAttention
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, features

LENGTH, SIZE = 5, 6


#: Builds inputs and outputs of a model around the given attention layer.
Wire = Callable[[keras.layers.Layer], tuple[Any, Any]]


def sequences(seed: int = 0, length: int = LENGTH) -> np.ndarray:
    return features(NUM_ROWS, length, SIZE, seed=seed)


def multi(split: bool, **arguments: Any) -> Any:
    cls = ParallelMultiHeadAttention if split else keras.layers.MultiHeadAttention
    return cls(**({"num_heads": 4, "key_dim": 3} | arguments))


def grouped(split: bool, **arguments: Any) -> Any:
    cls = ParallelGroupQueryAttention if split else keras.layers.GroupQueryAttention
    return cls(**({"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2} | arguments))


def to_itself(layer: Any, **call: Any) -> tuple[Any, Any]:
    x = keras.Input((LENGTH, SIZE))
    hidden = keras.layers.Dense(SIZE)(x)
    return x, hidden + layer(hidden, hidden, **call)


def classifier(layer: Any, wire: Wire = to_itself) -> keras.Model:
    inputs, outputs = wire(layer)
    pooled = [keras.layers.Flatten()(output) for output in keras.tree.flatten(outputs)]
    y = keras.layers.Concatenate()(pooled) if len(pooled) > 1 else pooled[0]
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(y))
    # A key bias shifts all scores of a query alike, so its gradient is zero up to rounding, which Adam would divide by
    # itself.
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def begun(make: Any, split: bool, axes: Mapping[str, int], **arguments: Any) -> keras.Model:
    """Returns a model of the layer and one after it, with weights that depend only on the seed."""
    keras.utils.set_random_seed(3)
    with mesh_strategy(axes).scope():
        x = keras.Input((LENGTH, SIZE))
        return keras.Model(x, keras.layers.Dense(2)(make(split, **arguments)(x, x)))
