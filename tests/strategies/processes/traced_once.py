"""Trains two models on two devices of each rank: one is traced once, the other for each replica."""

import json
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import strategies


class Model(keras.Model):
    """Synchronizes its replicas, and may then ask for the number of the replica.

    Args:
        asks: True to ask.
    """

    def __init__(self, *, asks: bool) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization(synchronized=True)
        self.dense = keras.layers.Dense(1)
        self.asks = asks

    def call(self, x: Any, training: bool | None = None) -> Any:
        if tf.distribute.get_replica_context() is not None and tf.inside_function():
            print(f"asks={self.asks}, traced")
        x = self.norm(x, training=training)
        context = tf.distribute.get_replica_context()
        if self.asks and context is not None:
            x = x + 0.0 * tf.cast(context.replica_id_in_sync_group, tf.float32)
        return self.dense(x)


def trained(*, asks: bool) -> list[Any]:
    """Returns logs, predictions and weights as lists."""
    x = np.random.default_rng(3).normal(size=(22, 6)).astype("float32")
    keras.utils.set_random_seed(1)
    model = Model(asks=asks)
    model.compile(keras.optimizers.SGD(1e-2), "mse", jit_compile=False)
    history = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return [
        history["loss"],
        model.predict(x, batch_size=8, verbose=0).tolist(),
        *(weight.tolist() for weight in model.get_weights()),
    ]


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("strategies._keras_hooks.trainer_calls").setLevel(logging.DEBUG)
    with strategies.MultiWorkerMirroredStrategy().scope():
        for asks in (False, True):
            print(f"asks={asks}: {json.dumps(trained(asks=asks))}", flush=True)
