"""Cuts by the measured cost of layers."""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.pipeline import layer_costs
from keras_ext.pipeline.graph_partition import partition_of
from tests.clock import Clock
from tests.keras_ext.tensor.harness import mesh_strategy

L = keras.layers


@keras.saving.register_keras_serializable("tests")
class Slow(keras.Layer):
    """Takes a given number of seconds in the forward pass."""

    def __init__(self, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def call(self, x: Any) -> Any:
        def wait(x: Any) -> Any:
            time.sleep(self.seconds)
            return x

        @tf.custom_gradient
        def waiting(x: Any) -> Any:
            made = tf.numpy_function(wait, [x], tf.float32, stateful=False)
            made.set_shape(x.shape)
            return made, lambda dy: dy

        return waiting(x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "seconds": self.seconds}


def chain(*seconds: float) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *(Slow(s, name=f"slow_{i}") for i, s in enumerate(seconds))])


def names(model: Any) -> list[list[str]]:
    return [[link.name for link in stage] for stage in model.partition.stages]


def test_stages_take_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (layer_costs, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", clock)
    with mesh_strategy({"data": 2, "pipe": 2}).scope():
        model = keras_ext.PipelineModel(chain(0.01, 0.01, 0.01, 0.05, 0.02))
    assert names(model) == [["slow_0", "slow_1", "slow_2"], ["slow_3", "slow_4"]]
    for link, seconds in zip(model.partition.links, (0.01, 0.01, 0.01, 0.05, 0.02), strict=True):
        assert link.seconds == pytest.approx(seconds)


def test_nothing_of_the_model_changes_while_it_is_measured() -> None:
    plain = keras.Sequential(
        [keras.Input((4,)), L.Dense(4), L.BatchNormalization(), L.Dropout(0.5, seed=3), L.Dense(2)]
    )
    before = [np.array(variable) for variable in plain.variables]
    for strategy in (mesh_strategy({"pipe": 2}), None):
        if strategy is not None:
            with strategy.scope():
                model = keras_ext.PipelineModel(plain)
        else:
            model = keras_ext.PipelineModel(plain, 2)
        for one, mine, theirs in zip(before, model.variables, plain.variables, strict=True):
            np.testing.assert_array_equal(one, np.array(theirs))
            np.testing.assert_array_equal(one, np.array(mine))
        assert model.losses == []


def test_any_input_will_do() -> None:
    ids, x = keras.Input((None,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    h = L.GlobalAveragePooling1D()(L.Embedding(5, 6)(ids))
    model = keras.Model({"ids": ids, "x": x}, L.Dense(2)(L.Concatenate()([h, x])))
    made = keras_ext.PipelineModel(model, 2)
    assert len(made.partition.stages) == 2
    sample = {"ids": np.full((3, 9), 4, "int32"), "x": np.zeros((3, 3), "float32")}
    given = keras_ext.PipelineModel(model, 2, partition=keras_ext.PartitionByTime(sample))
    # 6 numbers for each of 9 entries of 3 rows, and the entries themselves, which the embedding's gradient needs.
    assert given.partition.links[0].activation_bytes == 3 * 9 * (6 + 1) * 4


def test_a_limit_of_memory() -> None:
    model = keras.Sequential([keras.Input((4,)), *(L.Dense(4, use_bias=False) for _ in range(4))])
    held = [4 * 4 * 16 + 32 * 16] * 4

    def cut(limit: Any, num_held: int = 1) -> list[int]:
        wanted = keras_ext.PartitionByTime(max_stage_bytes=limit)
        return list(partition_of(model._functional, 2, wanted, lambda k: num_held).starts)

    assert cut([held[0], 10**9]) == [0, 1]
    assert cut([10**9, held[0]]) == [0, 3]
    with pytest.raises(ValueError, match="No cut into 2 stages"):
        cut(2 * held[0], num_held=2)


def test_a_table_of_what_was_measured() -> None:
    model = keras_ext.PipelineModel(chain(0.01, 0.02), 2)
    rows = str(model.partition).splitlines()
    assert rows[0].split()[:5] == ["stage", "layers", "from", "to", "ms"]
    assert [row.split()[2] for row in rows[1:]] == ["slow_0", "slow_1"]
    assert [float(row.split()[4]) >= 10 * (k + 1) for k, row in enumerate(rows[1:])] == [True, True]
