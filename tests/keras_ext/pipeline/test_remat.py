"""Stages that are recomputed in their backward pass: the same numbers, bit for bit."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.pipeline.test_model import normalizing, recurrent, sentences
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import labels, vectors

WAYS: dict[str, Any] = {"all": "all", "all_but_last": "all_but_last", "one": (1,)}


def trained(make: Any, x: Any, remat: Any, eagerly: bool = False, num_replicas: int = 2) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    with mesh_strategy({"data": num_replicas, "pipe": 2}).scope():
        model = keras_ext.PipelineModel(make(), num_microbatches=2, partition="uniform", remat=remat)
        model.compile(
            keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=eagerly
        )
    history = model.fit(x[:30], labels()[:30], batch_size=10, epochs=2, shuffle=False, verbose=0).history
    return [*(np.asarray(variable) for variable in model.variables), *map(np.asarray, history.values())]


@functools.cache
def trained_once(make: Any, remat: Any, num_replicas: int) -> list[np.ndarray]:
    """Trains once for all tests."""
    return trained(make, sentences() if make is recurrent else vectors(), remat, num_replicas=num_replicas)


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize("remat", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("make", "num_replicas"),
    # Loops take long to trace.
    [(normalizing, 2), (recurrent, 1), pytest.param(recurrent, 2, marks=pytest.mark.parity_all)],
)
def test_to_the_bit(make: Any, num_replicas: int, remat: Any) -> None:
    """Covers Dropout, whose seeds change once per micro-batch, and moving statistics, which change once, too."""
    for mine, theirs in zip(*(trained_once(make, way, num_replicas) for way in (remat, None)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def dropping(scope: bool) -> keras.Model:
    with keras.RematScope(mode="full" if scope else None):
        dropout = keras.layers.Dropout(0.5, seed=3)
        dense = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")]
        return keras.Sequential([keras.Input((6,)), dense[0], dropout, dense[1], dense[2]])


def test_where_ops_run_as_they_are_called() -> None:
    found = trained(lambda: dropping(False), vectors(), "all", eagerly=True)
    for mine, theirs in zip(found, trained(lambda: dropping(False), vectors(), None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_layers_made_under_a_remat_scope_keep_it() -> None:
    with mesh_strategy({"pipe": 2}).scope():
        model = keras_ext.PipelineModel(dropping(True), num_microbatches=2, partition="uniform")
    assert {layer._remat_mode.mode for layer in model.layers[1:]} == {"full"}
    found = trained(lambda: dropping(True), vectors(), None)
    for mine, theirs in zip(found, trained(lambda: dropping(False), vectors(), None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_a_remat_scope_under_a_strategy_without_stages() -> None:
    """Keras alone fails here in `fit`, and its recomputation drops other positions."""
    results = []
    for scope in (True, False):
        keras.utils.set_random_seed(1)
        with mesh_strategy({"data": 2}).scope():
            model = dropping(scope)
            model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(vectors()[:30], labels()[:30], batch_size=10, epochs=2, shuffle=False, verbose=0)
        results.append(model.get_weights())
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("remat", ["some", [2], [0, "1"]])
def test_refuses(remat: Any) -> None:
    with pytest.raises(ValueError, match="remat is None, 'all', 'all_but_last' or numbers of stages, 0 to 1"):
        keras_ext.PipelineModel(normalizing(), 2, remat=remat, partition="uniform")
