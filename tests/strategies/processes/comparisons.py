"""``strategy.check(model, data)`` over two processes: run by `test_suites` in both at once, never collected."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from strategies.collectives.strings import gather_texts
from tests.strategies._keras_hooks.faulty import Draws, X, Y, model_of
from tests.strategies._keras_hooks.test_comparisons import adversaries
from tests.strategies.processes.mesh_strategies import new_strategy, on

pytestmark = pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")

SHARDED: list[Any] = []


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    for axis in ("data", "pipe", "tensor"):
        on({axis: 2})
    SHARDED.append(new_strategy({"data": 2}, shard="weights"))


def made(strategy: Any, inner: Any = None, axis: str = "data") -> Any:
    with strategy.scope():
        model = model_of(inner)
        if axis == "tensor":
            model = keras_ext.parallelize(model)
        if axis == "pipe":
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition=["second"])
        model.compile("adam", "mse", metrics=["mae"])
    return model


def checked(strategy: Any, model: Any) -> Any:
    """Returns the result, which is the same on both ranks; the model is as it was before."""
    before = model.get_weights()
    found = strategy.check(model, (X, Y), steps=2)
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    texts = gather_texts(f"{found.to_json()} {found.findings}", strategy.extended.engine.process_group)
    assert texts[0] == texts[1]
    return found


@pytest.mark.parametrize("axis", ["pipe", "weights"])
def test_what_is_equal(axis: str) -> None:
    strategy = SHARDED[0] if axis == "weights" else on({axis: 2})
    model = made(strategy, lambda: keras.layers.Dropout(0.4, name="drop"), axis)
    model.fit(X, Y, batch_size=8, verbose=0)
    found = checked(strategy, model)
    assert found.ok, found
    assert len(found.notes) == 1
    assert {row.kind for row in found.rows} == {"output", "log", "gradient", "weight", "slot"}
    # Each rank of a pipeline computes the layers of its own stage.
    assert next(row.name for row in found.rows if row.kind == "output") == (
        "the model's outputs" if axis == "pipe" else "first"
    )
    assert found.called == ("first", "drop", "second", "last")


def test_a_layer_that_draws_is_named_on_both() -> None:
    strategy = on({"data": 2})
    found = checked(strategy, made(strategy, lambda: Draws(name="draws")))
    assert found.suspects == ("draws",)
    assert [finding.layer.rpartition("/")[2] for finding in found.findings] == ["draws"]


def test_two_meshes() -> None:
    strategy = on({"pipe": 2})
    model = made(strategy, axis="pipe")

    def make() -> Any:
        split = keras_ext.parallelize(model_of())
        split.compile("adam", "mse", metrics=["mae"])
        return split

    found = strategy.check(model, (X, Y), steps=2, against=on({"tensor": 2}), reference=make)
    assert found.ok, found


def test_named_optimizers_are_restored_on_both() -> None:
    strategy = on({"data": 2})
    with strategy.scope():
        model = adversaries()
    model.fit(X, batch_size=8, verbose=0)
    slots = [variable for each in (model.of_maker, model.of_judge) for variable in each.variables]
    before = [np.asarray(slot) for slot in slots]
    assert strategy.check(model, (X,), steps=2, reference=adversaries).ok
    for slot, value in zip(slots, before, strict=True):
        np.testing.assert_array_equal(slot, value)


def test_an_error_of_rank_0_is_one_of_both() -> None:
    strategy = on({"pipe": 2})
    model = made(strategy, axis="pipe")

    def make() -> Any:
        raise RuntimeError("No such file")

    with pytest.raises(ValueError, match=r"The model has no plain copy.*RuntimeError: No such file"):
        strategy.check(model, (X, Y), reference=make)
    model.fit(X, Y, batch_size=8, verbose=0)
