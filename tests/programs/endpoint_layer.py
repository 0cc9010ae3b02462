"""An endpoint layer: it takes targets and logits, adds the loss, follows the accuracy and gives predictions.

Changed for comparison: the layer takes Keras' own arguments, as layers must to be copied or saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L = keras.layers


@keras.saving.register_keras_serializable("programs")
class LogisticEndpoint(keras.layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, targets: Any, logits: Any, sample_weights: Any = None) -> Any:
        self.add_loss(self.loss_fn(targets, logits, sample_weights))
        self.accuracy_metric.update_state(targets, logits, sample_weights)
        return keras.ops.softmax(logits)


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    inputs, targets = keras.Input(shape=(3,), name="inputs"), keras.Input(shape=(10,), name="targets")
    logits = L.Dense(10)(L.Dense(6, activation="tanh")(inputs))
    predictions = LogisticEndpoint(name="predictions")(targets, logits)
    model = place(keras.Model(inputs=[inputs, targets], outputs=predictions))
    model.compile(optimizer="adam")
    return model


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    data = {"inputs": features(19, 3, seed=24), "targets": np.random.default_rng(25).integers(0, 2, (19, 10))}
    logs = fit(model, data, epochs=2, batch_size=8)
    evaluated = model.evaluate(data, batch_size=8, verbose=0, return_dict=True)
    return logs | {f"test_{name}": value for name, value in evaluated.items()}


CASE = Case("endpoint layer", make, run)
