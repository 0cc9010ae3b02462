"""Saved models: files saved under the strategy open anywhere, other files open under it, and training goes on."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.strategies.parity.harness import labels, vectors

REPLICAS = [1, 2, 4]


def scope(num_replicas: int) -> contextlib.AbstractContextManager[Any]:
    if num_replicas == 1:
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = strategies.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)]
    ).scope()
    return scope


def make() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dropout(0.0, seed=2),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.1), loss, metrics=["accuracy"])
    return model


def train(model: keras.Model) -> None:
    model.fit(vectors(), labels(), batch_size=14, shuffle=False, verbose=0)


@functools.cache
def trained(num_replicas: int, times: int = 1) -> keras.Model:
    """Returns one model for all tests, which save it and read it, and never train it on."""
    with scope(num_replicas):
        model = make()
    for _ in range(times):
        train(model)
    return model


def assert_equal_state(received: keras.Model, expected: keras.Model) -> None:
    pairs = [
        *zip(received.variables, expected.variables, strict=True),
        *zip(received.optimizer.variables, expected.optimizer.variables, strict=True),
    ]
    for mine, theirs in pairs:
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), atol=1e-6, err_msg=theirs.path)


def save_keras(model: keras.Model, path: pathlib.Path) -> None:
    model.save(path / "a model.keras")


def load_keras(path: pathlib.Path) -> keras.Model:
    return keras.models.load_model(path / "a model.keras")


def save_weights(model: keras.Model, path: pathlib.Path) -> None:
    model.save_weights(path / "a.weights.h5")


def load_weights(path: pathlib.Path) -> keras.Model:
    model = make()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path / "a.weights.h5")
    return model


def save_checkpoint(model: keras.Model, path: pathlib.Path) -> None:
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path / "point"))


def load_checkpoint(path: pathlib.Path) -> keras.Model:
    model = make()
    model.optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.read(str(path / "point")).assert_existing_objects_matched()
    return model


FORMATS: dict[str, tuple[Callable[..., None], Callable[..., keras.Model]]] = {
    ".keras": (save_keras, load_keras),
    ".weights.h5": (save_weights, load_weights),
    "tf.train.Checkpoint": (save_checkpoint, load_checkpoint),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, 1), (1, 2), (2, 4), (2, 2)])
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_trains_on_after_loading(name: str, saved_on: int, loaded_on: int, tmp_path: pathlib.Path) -> None:
    save, load = FORMATS[name]
    expected, first = trained(1, times=2), trained(saved_on)
    save(first, tmp_path)
    with scope(loaded_on):
        second = load(tmp_path)
    assert_equal_state(second, first)
    train(second)
    assert_equal_state(second, expected)


def test_file_is_that_of_one_device(tmp_path: pathlib.Path) -> None:
    """The file contains nothing of the strategy, neither in its names nor in the configuration."""
    for name, num_replicas in (("ours.keras", 2), ("plain.keras", 1)):
        keras.backend.clear_session(free_memory=False)  # restarts the numbers of layers and optimizers
        with scope(num_replicas):
            make().save(tmp_path / name)
    ours, plain = zipfile.ZipFile(tmp_path / "ours.keras"), zipfile.ZipFile(tmp_path / "plain.keras")
    assert sorted(ours.namelist()) == sorted(plain.namelist())
    # Keras identifies objects that occur twice by their addresses.
    mine, theirs = (
        json.loads(re.sub(rb'"shared_object_id": \d+', b'"shared_object_id": 0', archive.read("config.json")))
        for archive in (ours, plain)
    )
    assert mine == theirs


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_exported_model_serves_what_the_model_predicts(num_replicas: int, tmp_path: pathlib.Path) -> None:
    model = trained(num_replicas)
    expected = model.predict(vectors(), verbose=0)
    model.export(tmp_path / "served model", verbose=False)
    served = tf.saved_model.load(tmp_path / "served model")
    np.testing.assert_allclose(served.serve(tf.constant(vectors())), expected, atol=1e-6)


def test_saved_model_of_tensorflow(tmp_path: pathlib.Path) -> None:
    model = trained(2)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    received = loaded.signatures["serving_default"](tf.constant(vectors()))
    np.testing.assert_allclose(next(iter(received.values())), model.predict(vectors(), verbose=0), atol=1e-6)


def test_weights_set_and_read(tmp_path: pathlib.Path) -> None:
    plain = trained(1)
    with scope(2):
        model = make()
    model.set_weights(plain.get_weights())
    np.testing.assert_allclose(model.predict(vectors(), verbose=0), plain.predict(vectors(), verbose=0), atol=1e-6)
