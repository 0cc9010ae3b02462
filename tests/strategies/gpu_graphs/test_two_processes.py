"""Steps of one of two processes with GPUs. They are only traced, so the other process need not exist."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

import keras_ext
from tests.strategies.gpu_graphs import programs
from tests.strategies.gpu_graphs.bounds import check
from tests.would_be_gpus import would_be_gpus


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with would_be_gpus():
        yield
    keras.mixed_precision.set_dtype_policy("float32")


def test_a_gpu_each() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    x, y = programs.rows()
    with programs.one_of_two_processes(["/device:CPU:1"]) as strategy:
        with strategy.scope():
            optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=2)
            model = programs.classifier(optimizer=optimizer)
        with programs.steps_are_traced_only() as traced:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        check(traced[0], copies=11, between_gpus=0)
        with programs.steps_are_traced_only() as traced:
            model.evaluate(x, y, batch_size=8, verbose=0)
        check(traced[0], copies=8, between_gpus=0)
        check(programs.loop_of(strategy, model), copies=20, between_gpus=0)


def test_two_gpus_each() -> None:
    x, y = programs.rows()
    with programs.one_of_two_processes(["/device:CPU:1", "/device:CPU:2"]) as strategy:
        with strategy.scope():
            model = programs.classifier()
        with programs.steps_are_traced_only() as traced:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        # Sums are reduced between all four GPUs; only IndexedSlices go through the first GPU of each process.
        check(traced[0], copies=26, between_gpus=1)


def test_split_layers() -> None:
    devices = ["/device:CPU:1", "/device:CPU:2"]
    with programs.one_of_two_processes(devices, mesh={"data": 2, "tensor": 2}) as strategy:
        with strategy.scope():
            model = keras_ext.parallelize(programs.dense_layers())
            model.compile("adam", "mse")
        with programs.steps_are_traced_only() as traced:
            model.fit(*programs.numbers(), batch_size=8, verbose=0)
        check(traced[0], copies=30, between_gpus=2)
