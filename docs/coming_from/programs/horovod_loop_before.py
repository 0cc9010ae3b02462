"""A loop with Horovod's tape: horovodrun -np 2 python horovod_loop_before.py"""

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

hvd.init()
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
optimizer.build(model.trainable_variables)
model.set_weights(weights)
hvd.broadcast_variables([variable.value for variable in model.variables], root_rank=0)


@tf.function
def step(x, y):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(keras.losses.mean_squared_error(y, model(x, training=True)))
    trained = [variable.value for variable in model.trainable_variables]
    optimizer.apply(tape.gradient(loss, trained))
    return hvd.allreduce(loss)


rows = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).batch(100 // hvd.size())
losses = [np.mean([step(*batch) for batch in rows]) for epoch in range(3)]
if hvd.rank() == 0:
    print("loss", *(f"{loss:.6f}" for loss in losses))
