"""Steps of one process on two or four GPUs, traced on logical CPU devices that pass for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.gpu.xla import must_compile
from tests.gpu_scan import scan, worst
from tests.strategies.gpu_graphs import programs
from tests.strategies.gpu_graphs.bounds import check
from tests.would_be_gpus import would_be_gpus


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with would_be_gpus():
        yield
    keras.mixed_precision.set_dtype_policy("float32")


def test_fit_evaluate_and_predict() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    x, y = programs.rows()
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=2)
        model = programs.classifier(optimizer=optimizer)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    # 22 of these copies are gradients that pass through the first GPU, with the conditional of gradient accumulation.
    check(programs.steps_of(model.train_function)[0], copies=59, between_gpus=4)
    model.evaluate(x, y, batch_size=8, verbose=0)
    check(programs.steps_of(model.test_function)[0], copies=20, between_gpus=1, num_collectives=0)
    model.predict(x, batch_size=8, verbose=0)
    check(programs.steps_of(model.predict_function)[0], copies=5, between_gpus=1, num_collectives=0)


def test_compiled_replicas() -> None:
    """Batches are uneven, and the last one is smaller."""
    x, y = programs.numbers()
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        model = programs.dense_layers()
        model.compile("sgd", "mse", metrics=["mae"], jit_compile=True)
    model.fit(x[:9], y[:9], batch_size=6, shuffle=False, verbose=0)
    assert must_compile(model.train_function)
    check(programs.steps_of(model.train_function)[0], copies=37, between_gpus=1)
    model.evaluate(x[:9], y[:9], batch_size=6, verbose=0)
    check(programs.steps_of(model.test_function)[0], copies=30, between_gpus=1, num_collectives=0)
    model.predict(x[:9], batch_size=6, verbose=0)
    check(programs.steps_of(model.predict_function)[0], copies=5, between_gpus=1, num_collectives=0)


def test_several_steps_in_one_function() -> None:
    """The host measures when a step begins and ends: the number of edges depends on GPUs, not on operations."""
    x, y = programs.rows()
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        model = programs.classifier(steps_per_execution=2)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    found = scan(programs.steps_of(model.train_function)[0])
    assert not [*found.without_kernel(), *found.refused(), *found.disorders, *found.beside_collectives()]
    assert len(found.with_host()) <= 6, worst(found.with_host())
    assert len(found.between_gpus()) <= 2, worst(found.between_gpus())


def test_loops() -> None:
    strategy = strategies.MirroredStrategy(["CPU:1", "CPU:2"])
    with strategy.scope():
        model = programs.classifier()
    check(programs.loop_of(strategy, model), copies=21, between_gpus=1)


def test_split_layers() -> None:
    mesh = {"data": 2, "tensor": 2}
    with strategies.MirroredStrategy([f"CPU:{i}" for i in (1, 2, 3, 4)], mesh=mesh).scope():
        model = keras_ext.parallelize(programs.dense_layers())
        model.compile("adam", "mse")
    model.fit(*programs.numbers(), batch_size=8, verbose=0)
    # Updates on a GPU that is not a replica's first read the learning rate and the number of steps from the first.
    check(programs.steps_of(model.train_function)[0], copies=40, between_gpus=3)


def test_pipelines() -> None:
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"], mesh={"pipe": 2}).scope():
        model = keras_ext.PipelineModel(programs.dense_layers(), num_microbatches=4)
        model.compile("adam", "mse")
    model.fit(*programs.numbers(), batch_size=8, verbose=0)
    check(programs.steps_of(model.train_function)[0], copies=28, between_gpus=1, num_collectives=0)


def test_gradients_of_bfloat16() -> None:
    """TensorFlow cannot sum bfloat16 gradients on GPUs, and cannot pack them with others."""
    keras.mixed_precision.set_dtype_policy("bfloat16")
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        layers = [keras.Input((8,)), keras.layers.Dense(3), keras.layers.Dense(4, dtype="float32")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    [loss] = model.fit(*programs.numbers(), batch_size=8, verbose=0).history["loss"]
    assert np.isfinite(loss)
    check(programs.steps_of(model.train_function)[0], copies=20, between_gpus=1)
