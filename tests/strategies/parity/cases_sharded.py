"""Parity cases only for optimizers that are sharded over devices: files, and sizes of weights."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_ext
from strategies import layer_api
from tests.strategies.parity.harness import Case, Logs, Model, labels, vectors

opt = keras.optimizers


def of_few_weights(optimizer: Any, constraint: Any = None) -> Model:
    """Returns a model with weights of 1, 5, 6, 7, 30 and 42 numbers."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", use_bias=False)(inputs)
    hidden = keras.layers.LayerNormalization(scale=False)(hidden)
    one = keras.layers.Dense(1)(inputs)
    large = keras.initializers.RandomNormal(stddev=9.0)
    outputs = keras.layers.Dense(7, kernel_initializer=large, kernel_constraint=constraint)(
        keras.layers.concatenate([hidden, one])
    )
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def transformer(optimizer: Any) -> Model:
    """Returns a transformer block over sentences of six words."""
    layers = keras.layers
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8)(words)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(layers.LayerNormalization()(x), x)])
    hidden = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(8)(hidden)])
    model = keras.Model(words, layers.Dense(11)(x))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def of_words_in_float8(optimizer: Any) -> Model:
    """Returns a model of dense layers, the first and the last of which are quantized."""
    layers = keras.layers
    words = keras.Input((6,), dtype="int32")
    x = layers.Dense(16, activation="relu", dtype="float8_from_float32")(layers.Embedding(11, 8)(words))
    x = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    model = keras.Model(words, layers.Dense(11, dtype="float8_from_float32")(x))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def in_parts(optimizer: Any = None, make: Callable[[Any], Model] = transformer) -> Model:
    """Returns a model that is split or staged as the current strategy's mesh asks."""
    optimizer = optimizer or opt.Adam(1e-2, epsilon=1e-3, clipnorm=0.1)
    axes = getattr(tf.distribute.get_strategy(), "mesh", None)
    sizes = {} if axes is None else axes.axes
    model = make(optimizer)
    if sizes.get("tensor", 1) > 1:
        model = keras_ext.parallelize(model)
    if sizes.get("pipe", 1) > 1:
        model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def trained_in_parts(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Trains, saves, and opens the file in plain Keras."""
    with tempfile.TemporaryDirectory() as own:
        path = Path(os.environ.get("PARITY_FOLDER") or own) / "in parts.keras"
        losses = model.fit(*sentences(), batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        model.save(path)
        again = loaded(path, None)
    logs = {"loss": np.array(losses), **values(model)}
    slots = [variable.numpy() for variable in again.optimizer.variables]
    return logs | {f"in the file {i}": value for i, value in enumerate([*again.get_weights(), *slots])}


def sentences() -> tuple[Any, Any]:
    """Returns words, and the next words."""
    drawn = np.random.default_rng(0).integers(0, 11, (44, 7))
    return drawn[:, :-1], drawn[:, 1:]


def values(model: Model) -> Logs:
    """Returns weights and slots, as logs."""
    slots = layer_api.values_of(model, layer_api.joined(model.optimizer.variables))
    return {f"value {i}": value for i, value in enumerate([*model.get_weights(), *slots])}


def fit(model: Model, epochs: int = 1) -> None:
    model.fit(vectors(), labels(), batch_size=14, epochs=epochs, shuffle=False, verbose=0)


def trained(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Trains for two epochs; returns weights and slots."""
    fit(model, 2)
    return values(model)


def loaded(path: Path, strategy: tf.distribute.Strategy | None) -> Model:
    """Opens a file under a strategy, or in plain Keras."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        return keras.models.load_model(path)


def saved_and_loaded(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Trains, saves, loads the file into a new model of the strategy, and trains that model on."""
    folder = os.environ.get("PARITY_FOLDER")
    with tempfile.TemporaryDirectory() as own:
        path = Path(folder or own) / "half way.keras"
        fit(model)
        model.save(path)
        again = loaded(path, strategy)
        fit(again)
        return values(again)


class Centered(keras.optimizers.SGD):
    """Needs a whole gradient before the update."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        centered = [None if grad is None else grad - tf.reduce_mean(grad) for grad in grads]
        return super().apply(centered, trainable_variables)


CASES = [
    Case("an optimizer with an apply of its own", lambda: of_few_weights(Centered(0.01)), trained),
    Case(
        "weights of 1, 5 and 7 numbers, excluded from weight decay",
        lambda: of_few_weights(_without_decay_of_biases()),
        trained,
    ),
    Case(
        "a constraint, and an overflow in the first step",
        lambda: of_few_weights(opt.LossScaleOptimizer(opt.SGD(0.1), initial_scale=3e38), "max_norm"),
        trained,
    ),
    Case("saved, loaded, gone on", lambda: of_few_weights(opt.Adam(1e-2, global_clipnorm=0.5)), saved_and_loaded),
    Case(
        "whole weights saved, loaded, gone on",
        lambda: of_few_weights(opt.Adafactor(1e-2, gradient_accumulation_steps=2)),
        saved_and_loaded,
    ),
]
#: For meshes with more axes than "data"; other tests cover the exchanges between replicas there.
IN_PARTS = [
    Case("a transformer in parts", in_parts, trained_in_parts),
    Case("float8 in parts", lambda: in_parts(opt.SGD(0.1, 0.9), of_words_in_float8), trained_in_parts),
    Case(
        "a transformer in parts, norms, averages and overflows of all",
        lambda: in_parts(
            opt.LossScaleOptimizer(
                opt.SGD(0.1, 0.9, global_clipnorm=0.1, use_ema=True, ema_overwrite_frequency=3), initial_scale=2.0**126
            )
        ),
        trained_in_parts,
    ),
]


def _without_decay_of_biases() -> Any:
    optimizer = opt.AdamW(1e-2, weight_decay=0.2)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OWN = {case.name: case for case in CASES}
PARTS = {case.name: case for case in IN_PARTS}
