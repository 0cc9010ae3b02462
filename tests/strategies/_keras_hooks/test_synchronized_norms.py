"""Synchronized batch normalization in a pipeline; over replicas it is in the parity cases."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from tests.releases import ignore_warning_of_numpy

L: Any = keras.layers


def normalizing(**arguments: Any) -> Any:
    layers = [L.Dense(4), L.BatchNormalization(name="norm", **arguments), L.Dense(3)]
    return keras.Sequential([keras.Input((3,)), *layers])


def warnings_of_training(model: Any) -> list[warnings.WarningMessage]:
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ignore_warning_of_numpy()
        for _ in range(2):
            model.fit(x, x, batch_size=8, verbose=0)
    return list(caught)


def test_micro_batches_of_a_synchronized_layer_are_warned_of_once_at_the_line_of_the_program() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"pipe": 2})
    for arguments, number, is_found in (
        ({"synchronized": True}, 2, True),
        ({"synchronized": True}, 1, False),
        ({"synchronized": True, "trainable": False}, 2, False),
        ({}, 2, False),
    ):
        with strategy.scope():
            model = keras_ext.PipelineModel(
                normalizing(**arguments), num_microbatches=number, partition="uniform", name="staged"
            )
            model.compile("sgd", "mse")
        findings = strategy.check(model)
        caught = warnings_of_training(model)
        assert [finding.layer for finding in findings] == ["norm"] * is_found
        assert len(caught) == is_found
        if is_found:
            message = str(caught[0].message)
            assert message.startswith("The pipeline 'staged' with 'norm': BatchNormalization(synchronized=True)")
            assert findings[0].fix in message
            assert "num_microbatches=1" in message
            assert caught[0].category is strategies.DifferenceWarning
            assert caught[0].filename == __file__
            lines, start = inspect.getsourcelines(warnings_of_training)
            assert "model.fit" in lines[caught[0].lineno - start]
