"""Ray Train on two workers: python ray_after.py"""

import ray.train


def train(config):
    import keras
    import numpy as np

    import strategies

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 20), dtype="float32")
    y = np.sin(x.sum(axis=1, keepdims=True))
    weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

    strategy = strategies.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(config["rate"], momentum=0.9), loss="mse")
    model.set_weights(weights)
    report = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ray.train.report(dict(logs)))
    losses = model.fit(x, y, batch_size=100, epochs=3, shuffle=False, callbacks=[report], verbose=0).history["loss"]
    if strategy.is_chief:
        print("loss", *(f"{loss:.6f}" for loss in losses))


if __name__ == "__main__":
    from ray.train.tensorflow import TensorflowTrainer

    workers = ray.train.ScalingConfig(num_workers=2)
    TensorflowTrainer(train, train_loop_config={"rate": 0.05}, scaling_config=workers).fit()
