"""tf.distribute in two processes: strategies-launch --nproc-per-node 2 tf_distribute_workers_before.py"""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
model.set_weights(weights)
losses = model.fit(x, y, batch_size=100, epochs=3, shuffle=False, verbose=0).history["loss"]
if strategy.cluster_resolver.task_id == 0:
    print("loss", *(f"{loss:.6f}" for loss in losses))
