"""Keras contenders in their process: `train_on_batch`, on one device or split, on TensorFlow or JAX."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from harness.workers import Report

from tensor_parallel import clock
from tensor_parallel.sizes import HEAD_SIZE, LENGTH
from tensor_parallel.workload import Workload


def make_model(workload: Workload) -> Any:
    """Returns the plain model, not compiled."""
    width, layers = workload.width, keras.layers
    if workload.model == "mlp":
        x = keras.Input((width,))
        return keras.Model(x, _feed_forward(x, width, "relu"))
    x = keras.Input((LENGTH, width))
    n = layers.LayerNormalization(name="norm_1")(x)
    attention = layers.MultiHeadAttention(width // HEAD_SIZE, HEAD_SIZE, name="attention")
    h = x + attention(n, n, use_causal_mask=True)
    return keras.Model(x, h + _feed_forward(layers.LayerNormalization(name="norm_2")(h), width, "gelu"))


def _feed_forward(x: Any, width: int, activation: str) -> Any:
    hidden = keras.layers.Dense(4 * width, activation=activation, name="up")(x)
    return keras.layers.Dense(width, name="down")(hidden)


def run(workload: Workload, num_shards: int, backend: str, report: Report) -> None:
    """Trains until the benchmark ends; call it before the backend has started in this process."""
    keras.utils.set_random_seed(0)
    model = _on_jax(workload, num_shards) if backend == "jax" else _on_tensorflow(workload, num_shards)
    x, y = make_batch(workload)
    clock.measure(lambda: model.train_on_batch(x, y), workload, report)


def make_batch(workload: Workload) -> tuple[Any, Any]:
    """Returns inputs and targets."""
    rows = (workload.batch_size,) if workload.model == "mlp" else (workload.batch_size, LENGTH)
    x, y = np.random.default_rng(0).standard_normal((2, *rows, workload.width), dtype=np.float32)
    return x, y


def _compiled(model: Any) -> Any:
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def _on_tensorflow(workload: Workload, num_shards: int) -> Any:
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    if num_shards == 1:
        return _compiled(make_model(workload))
    import keras_ext
    import strategies

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_shards)
    devices = [f"CPU:{index}" for index in range(num_shards)]
    with strategies.MirroredStrategy(devices, mesh={"tensor": num_shards}).scope():
        return _compiled(keras_ext.parallelize(make_model(workload)))


def _on_jax(workload: Workload, num_shards: int) -> Any:
    if num_shards > 1:
        devices = keras.distribution.DeviceMesh((1, num_shards), ["batch", "model"])
        layouts = keras.distribution.LayoutMap(devices)
        layouts["up/kernel"] = (None, "model")
        layouts["up/bias"] = ("model",)
        layouts["down/kernel"] = ("model", None)
        layouts["(query|key|value)/kernel"] = (None, "model", None)
        layouts["(query|key|value)/bias"] = ("model", None)
        layouts["attention_output/kernel"] = ("model", None, None)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        )
    return _compiled(make_model(workload))
