"""A mesh with TensorFlow: python keras_distribution_after.py"""

import keras
import numpy as np
import tensorflow as tf

import keras_ext
import strategies

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

# Four devices on the CPU, in place of four GPUs.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

layers = [keras.layers.Dense(32, "tanh", name="up"), keras.layers.Dense(1, name="down")]
model = keras.Sequential([keras.Input((20,)), *layers])
model.set_weights(weights)

strategy = strategies.MirroredStrategy(mesh={"data": 2, "tensor": 2})
with strategy.scope():
    model = keras_ext.parallelize(model, {"up": "column", "down": "row"})
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
losses = model.fit(x, y, batch_size=100, epochs=3, shuffle=False, verbose=0).history["loss"]
print("loss", *(f"{loss:.6f}" for loss in losses))
