"""`evaluate`, `predict` and plain calls: forward only, with micro-batches where devices can work in parallel."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from tests.keras_ext.pipeline.ops_of_steps import nodes_of
from tests.keras_ext.pipeline.test_model import pipelined, recurrent, sentences, skipping
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import labels, vectors


def num_products(step: Any, model: Any) -> int:
    function = tf.function(lambda x: model.distribute_strategy.run(step, args=((x, tf.zeros(12, tf.int32)),)))
    graph = function.get_concrete_function(tf.constant(vectors()[:12]))
    return sum(node.op == "MatMul" for node in nodes_of(graph))


def test_batches_flow_in_micro_batches() -> None:
    with mesh_strategy({"pipe": 2}).scope():
        model = pipelined(skipping, True, num_microbatches=4)
    # Four dense layers, one of them called twice.
    assert num_products(model.test_step, model) == num_products(model.predict_step, model) == 4 * 5
    assert num_products(lambda data: model(data[0]), model) == 5


def test_penalties_of_activities_are_those_of_the_batch() -> None:
    keras.utils.set_random_seed(1)
    plain = pipelined(skipping, False)
    split = keras_ext.PipelineModel(plain, 2, num_microbatches=4, partition="uniform")
    split.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    # Batches of 14 rows, and of 3.
    wanted, found = (model.evaluate(vectors(), labels(), batch_size=14, verbose=0) for model in (plain, split))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    split(vectors())
    plain(vectors())
    np.testing.assert_allclose(split.losses, plain.losses, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "inputs"), [(skipping, vectors), pytest.param(recurrent, sentences, marks=pytest.mark.parity_all)]
)
def test_takes_the_weights_of_a_plain_model(
    make: Callable[[], Any], inputs: Callable[[], Any], tmp_path: pathlib.Path
) -> None:
    x = inputs()
    keras.utils.set_random_seed(1)
    plain = make()
    plain.save_weights(tmp_path / "plain.weights.h5")
    with mesh_strategy({"data": 2, "pipe": 2}).scope():
        by_file, by_list = (keras_ext.PipelineModel(make(), num_microbatches=3, partition="uniform") for _ in range(2))
        by_list.set_weights(plain.get_weights())
    by_file.load_weights(tmp_path / "plain.weights.h5")
    for model in (by_file, by_list):
        np.testing.assert_allclose(model.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=0, atol=1e-6)
    by_file.save_weights(tmp_path / "split.weights.h5")
    again = make()
    again.load_weights(tmp_path / "split.weights.h5")
    for mine, theirs in zip(again.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
