"""Batches of Keras' trainer are on their devices before their step, if no program reads the source itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.batches.prefetch import ReadAheadIterator
from strategies.engine.engine import Engine
from tests.strategies.batches.test_prefetch import place_of
from tests.would_be_gpus import would_be_gpus

# Keras warns of every dataset of unknown length, with or without a strategy.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

X = np.random.default_rng(0).standard_normal((22, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make(steps_per_execution: int = 1, jit_compile: bool | str = "auto") -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(0.05),
        "mse",
        metrics=["mae"],
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )
    return model


def dataset(batch_size: int = 5) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


class Slices(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return X[5 * index : 5 * index + 5], Y[5 * index : 5 * index + 5]


class Endless(Slices):
    @property
    def num_batches(self) -> None:
        return None

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return super().__getitem__(index % 4)


def trained(model: keras.Model, case: str) -> Any:
    settings: dict[str, Any] = {"verbose": 0, "shuffle": False}
    if case == "tf.data":
        return [model.fit(dataset(), epochs=2, validation_data=dataset(7), **settings).history]
    if case == "arrays":
        history = model.fit(X, Y, batch_size=7, epochs=2, validation_split=0.3, **settings).history
        return [history, model.evaluate(X, Y, batch_size=9, verbose=0), model.predict(X, batch_size=7, verbose=0)]
    if case == "steps":
        history = model.fit(dataset().repeat(), steps_per_epoch=3, epochs=3, **settings).history
        return [history, model.evaluate(dataset().repeat(), steps=2, verbose=0), model.predict(dataset(), verbose=0)]
    if case == "several steps at once":
        history = model.fit(dataset(), epochs=2, validation_data=dataset(7), **settings).history
        return [history, model.evaluate(dataset(), verbose=0), model.predict(dataset(), verbose=0)]
    if case == "PyDataset":
        history = model.fit(Slices(), epochs=2, validation_data=Slices(workers=2), **settings).history
        return [history, model.evaluate(Slices(), verbose=0), model.predict(Slices(), verbose=0)]
    if case == "short":
        return [model.fit(dataset(7), steps_per_epoch=2, epochs=4, **settings).history]
    if case == "two datasets":
        full = dataset(4).take(5)
        return [model.fit(d, **settings).history for d in (dataset(), full, dataset(4))]
    data = dataset().filter(lambda x, y: True) if case == "unknown length" else dataset()
    return [model.fit(data, epochs=2, **settings).history]


@pytest.mark.parametrize(
    "case",
    ["tf.data", "arrays", "steps", "short", "two datasets", "unknown length", "PyDataset", "several steps at once"],
)
def test_fit_equals_one_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "computes_on_gpus", True)
    together = 3 if case == "several steps at once" else 1
    # On GPUs, the choice is XLA, which counts no step at the end of the data.
    plain = make(together, True if case == "unknown length" else "auto")
    expected = trained(plain, case)
    for devices in (["CPU:1", "CPU:2", "CPU:3"], ["CPU:4"]) if case == "tf.data" else (["CPU:1", "CPU:2"],):
        with strategies.MirroredStrategy(devices).scope():
            model = make(together)
        keras.tree.map_structure(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
            trained(model, case),
            expected,
        )
        for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_steps_find_their_arguments_in_place(reads_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "computes_on_gpus", reads_ahead)
    places: list[list[int]] = []

    class Spy(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            if not isinstance(data[0], keras.KerasTensor):
                places.append([place_of(value) for value in data])
            return super().train_step(data)

    with strategies.MirroredStrategy(mesh={"data": 2, "tensor": 4}).scope():
        model = Spy([keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(dataset(11), verbose=0, shuffle=False)
    assert sorted(places) == ([[0, 0], [0, 0], [4, 4], [4, 4]] if reads_ahead else [[0, 0]] * 4)


@pytest.mark.parametrize(
    ("kind", "is_read_ahead"),
    [
        ("generator", False),
        ("dataset of a generator", False),
        ("PyDataset without end", False),
        ("PyDataset left early", False),
        ("PyDataset", True),
        ("several steps at once", True),
    ],
)
def test_what_is_read_ahead(kind: str, is_read_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may go on reading a generator; a PyDataset gets a callback at the end of an epoch."""
    read: list[Any] = []
    following = ReadAheadIterator.__next__

    def spy(self: Any) -> Any:
        read.append(self)
        return following(self)

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            yield X[:3], Y[:3]

    monkeypatch.setattr(Engine, "computes_on_gpus", True)
    monkeypatch.setattr(ReadAheadIterator, "__next__", spy)
    data: Any = dataset()
    if kind == "generator":
        data = batches()
    if kind == "dataset of a generator":
        spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
        data = tf.data.Dataset.from_generator(batches, output_signature=spec).map(lambda x, y: (x, y)).prefetch(1)
    if kind.startswith("PyDataset"):
        data = Endless() if kind == "PyDataset without end" else Slices()
    with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        model = make()
        model.compile("sgd", "mse", steps_per_execution=2 if kind == "several steps at once" else 1)
    model.fit(data, steps_per_epoch=None if is_read_ahead else 2, verbose=0, shuffle=False)
    assert bool(read) == is_read_ahead


def test_int32_reaches_would_be_gpus_by_way_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids and labels of int32, on devices that pass for GPUs, with the reduction for GPUs."""
    ids = np.random.default_rng(3).integers(0, 9, (22, 5), dtype="int32")
    places: set[tuple[str, int]] = set()
    following = ReadAheadIterator.__next__

    def spy(self: Any) -> Any:
        element = following(self)
        places.update((value.dtype.name, place_of(value)) for leaf in element for value in leaf.values)
        return element

    def make() -> keras.Model:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.GlobalAveragePooling1D()]
        model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers, keras.layers.Dense(9)])
        model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    data = tf.data.Dataset.from_tensor_slices((ids, ids[:, 0], np.ones(22, "float32"))).batch(5)
    plain = make()
    expected = plain.fit(data, epochs=2, verbose=0, shuffle=False).history["loss"]
    with would_be_gpus():
        monkeypatch.setattr(ReadAheadIterator, "__next__", spy)
        with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
            model = make()
        found = model.fit(data, epochs=2, verbose=0, shuffle=False).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert places == {("int32", 0), ("float32", 1), ("float32", 2)}
