"""spark-tensorflow-distributor on two tasks: spark-submit spark_after.py, or a cell of a notebook on Databricks"""


def train():
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
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    model.set_weights(weights)
    losses = model.fit(x, y, batch_size=100, epochs=3, shuffle=False, verbose=0).history["loss"]
    return " ".join(["loss", *(f"{loss:.6f}" for loss in losses)])


if __name__ == "__main__":
    from spark_tensorflow_distributor import MirroredStrategyRunner

    # The function creates its strategy; by default the runner would create TensorFlow's.
    print(MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True).run(train))
