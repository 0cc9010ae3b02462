"""keras.distribution on JAX: python keras_distribution_before.py"""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # In place of four GPUs.

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], keras.distribution.list_devices())
layout_map = keras.distribution.LayoutMap(mesh)
layout_map["up/kernel"] = (None, "model")
layout_map["up/bias"] = ("model",)
layout_map["down/kernel"] = ("model", None)
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))

layers = [keras.layers.Dense(32, "tanh", name="up"), keras.layers.Dense(1, name="down")]
model = keras.Sequential([keras.Input((20,)), *layers])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
model.set_weights(weights)
losses = model.fit(x, y, batch_size=100, epochs=3, shuffle=False, verbose=0).history["loss"]
print("loss", *(f"{loss:.6f}" for loss in losses))
