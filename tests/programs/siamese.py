"""A siamese network with a triplet loss: `call` on three pictures, an own loss in `train_step` and `test_step`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model, features

L, ops = keras.layers, keras.ops
TARGET_SHAPE, NUM_ROWS = (8, 8), 19


class DistanceLayer(keras.layers.Layer):
    """Computes the distances from the anchor to the positive and to the negative picture."""

    def call(self, anchor: Any, positive: Any, negative: Any) -> Any:
        ap_distance = ops.sum(tf.square(anchor - positive), -1)
        an_distance = ops.sum(tf.square(anchor - negative), -1)
        return ap_distance, an_distance


def make_siamese_network() -> Model:
    images = keras.Input(shape=(*TARGET_SHAPE, 3))
    x = L.Conv2D(4, 3, strides=2, activation="relu")(images)
    x = L.LayerNormalization()(L.Dense(6, activation="relu")(L.Flatten()(x)))
    embedding = keras.Model(images, L.Dense(4)(x), name="Embedding")
    inputs = [keras.Input(shape=(*TARGET_SHAPE, 3), name=name) for name in ("anchor", "positive", "negative")]
    distances = DistanceLayer()(*(embedding(each) for each in inputs))
    return keras.Model(inputs=inputs, outputs=distances)


class SiameseModel(keras.Model):
    def __init__(self, siamese_network: Model, margin: float = 0.5) -> None:
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.siamese_network(inputs)

    def triplet_loss(self, data: Any) -> Any:
        ap_distance, an_distance = self.siamese_network(data)
        return tf.reduce_mean(tf.maximum(ap_distance - an_distance + self.margin, 0.0))

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.triplet_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data: Any) -> Any:
        self.loss_tracker.update_state(self.triplet_loss(data))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]


def make() -> Model:
    siamese_model = SiameseModel(make_siamese_network())
    siamese_model.compile(optimizer=keras.optimizers.Adam(0.001, epsilon=1e-3), weighted_metrics=[])
    return siamese_model


def triplets(count: int, seed: int) -> tf.data.Dataset:
    # Of numbers below 1, as pictures are.
    pictures = [np.tanh(features(count, *TARGET_SHAPE, 3, seed=seed + i)) for i in range(3)]
    datasets = [tf.data.Dataset.from_tensor_slices(each) for each in pictures]
    return tf.data.Dataset.zip(tuple(datasets)).batch(8, drop_remainder=False).prefetch(2)


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    return fit(model, triplets(NUM_ROWS, 16), epochs=2, validation_data=triplets(5, 19))


CASE = Case("siamese network", make, run)
