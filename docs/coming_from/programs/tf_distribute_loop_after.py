"""A loop of one's own under ours: python tf_distribute_loop_after.py"""

import keras
import numpy as np
import tensorflow as tf

import strategies

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

# Two devices on the CPU, in place of two GPUs.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
model.set_weights(weights)


def replica_step(x, y):
    with tf.GradientTape() as tape:
        errors = keras.losses.mean_squared_error(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(errors, global_batch_size=100)
    optimizer.apply(tape.gradient(loss, model.trainable_variables))
    return loss


@tf.function
def step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(100))
losses = [np.mean([step(*batch) for batch in dataset]) for epoch in range(3)]
print("loss", *(f"{loss:.6f}" for loss in losses))
