"""Horovod's Keras binding: horovodrun -np 2 python horovod_fit_before.py"""

import horovod.tensorflow.keras as hvd
import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

hvd.init()
x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse")
model.set_weights(weights)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
history = model.fit(x, y, batch_size=100 // hvd.size(), epochs=3, shuffle=False, callbacks=callbacks, verbose=0)
losses = history.history["loss"]
if hvd.rank() == 0:
    print("loss", *(f"{loss:.6f}" for loss in losses))
