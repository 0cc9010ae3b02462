"""Trains a small model with the installed TensorFlow and Keras, with and without a strategy, and compares.

    python -m tests.versions.fit
    python -m strategies.launch --nproc-per-node 2 -m tests.versions.fit MultiWorkerMirroredStrategy

Needs no pytest, so that an environment for it is made quickly.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_ext
import strategies

TOLERANCE = 1e-6


def plain() -> keras.Model:
    """A model of three layers that can be split, and cut into stages."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    normalized = keras.layers.LayerNormalization(name="normalized")(hidden)
    return keras.Model(inputs, keras.layers.Dense(4, name="outputs")(normalized))


def fit(make: Callable[[], Any], strategy: Any = None) -> list[np.ndarray]:
    """Returns the weights and losses of two epochs, whose last batch is smaller."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(28, 8)).astype("float32"), random.normal(size=(28, 4)).astype("float32")
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = make()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5), "mse")
    losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [*model.get_weights(), np.asarray(losses)]


def compare(name: str, found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Prints the largest difference; ends the program if it is beyond the tolerance."""
    difference = max(float(np.abs(one - other).max()) for one, other in zip(found, expected, strict=True))
    print(f"{name}: {difference:.1e} from one device")
    if not difference <= TOLERANCE:
        sys.exit(f"{name} differs from one device by more than {TOLERANCE}")


def in_one_process() -> None:
    """Two devices: as replicas, as shards, as stages."""
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    expected = fit(plain)
    made: dict[str, Callable[[], Any]] = {
        "data": plain,
        "tensor": lambda: keras_ext.parallelize(plain()),
        "pipe": lambda: keras_ext.PipelineModel(plain(), num_microbatches=2),
    }
    for axis, make in made.items():
        found = fit(make, strategies.MirroredStrategy(mesh={axis: 2}))
        compare(f"MirroredStrategy, {axis}=2", found, expected)


def between_processes(kind: str) -> None:
    """One device in each process of a job."""
    # It has to be made before anything else that runs TensorFlow.
    strategy = getattr(strategies, kind)()
    compare(f"{kind}, data={strategy.num_replicas_in_sync}", fit(plain, strategy), fit(plain))


if __name__ == "__main__":
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}")
    if sys.argv[1:]:
        between_processes(sys.argv[1])
    else:
        in_one_process()
