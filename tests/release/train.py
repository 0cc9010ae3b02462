"""A first program for one process with two devices, or for the processes of `strategies-launch`.

python train.py
strategies-launch --nproc-per-node 2 train.py
"""

import keras
import numpy as np
import tensorflow as tf

import strategies

# All GPUs of this process; without a GPU, two devices on the CPU.
if not tf.config.list_physical_devices("GPU"):
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = strategies.MultiWorkerMirroredStrategy()

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=1.0), loss="mse", metrics=["mae"])

x = np.random.default_rng(0).standard_normal((1000, 20)).astype("float32")
history = model.fit(x, x[:, :1] * x[:, 1:2], batch_size=96, epochs=5)
model.save("model.keras")  # opens in plain Keras
if strategy.is_chief:
    print(f"replicas: {strategy.num_replicas_in_sync}, last loss: {history.history['loss'][-1]:.6f}")
