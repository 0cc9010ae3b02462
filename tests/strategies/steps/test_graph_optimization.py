"""The graph that runs is the one that all of TensorFlow's optimizations give, twice, except for constants."""

from __future__ import annotations

import collections
import contextlib
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._tf_internals import eager_context
from strategies.steps import graph_optimization
from strategies.steps.graph_optimization import StepOptimization
from tests.executed_graphs import executed_graphs


def iterations() -> int:
    options = eager_context.context().function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    return int(config.graph_options.rewrite_options.meta_optimizer_iterations)


class Branching(keras.layers.Layer):
    """Has a branch, into which ops might be moved."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        scaled, squared = self.scale * x, tf.square(x)
        return tf.cond(self.scale > 0.0, lambda: scaled, lambda: squared)


def executed(num_heads: int) -> collections.Counter[str]:
    """Returns the types of the ops that run in a training step on two devices."""
    keras.utils.set_random_seed(1)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        inputs = keras.Input((6, 4))
        x = keras.layers.MultiHeadAttention(num_heads, 3)(inputs, inputs)
        x = keras.layers.Conv1D(5, 3, activation="relu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(keras.layers.GRU(4, return_sequences=True)(x)))
        x = Branching()(x)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))
        model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse", metrics=["mae"], jit_compile=False)
    x, y = np.ones((8, 6, 4), "float32"), np.ones((8, 1), "float32")
    made = executed_graphs(lambda: model.fit(x, y, batch_size=8, verbose=0))
    graphs = [graph for each in made for graph in each.partition_graphs]
    # The two devices' parts of the step, without the small graphs of eager operations.
    parts = sorted(graphs, key=lambda graph: len(graph.node))[-2:]
    return collections.Counter(node.op for graph in parts for node in graph.node)


def test_ops_that_run_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    original = mock.Mock(side_effect=graph_optimization._options)
    monkeypatch.setattr(graph_optimization, "_options", original)
    once = executed(2)
    assert original.called
    monkeypatch.setattr(StepOptimization, "running", lambda self: tf.name_scope("twice"))
    monkeypatch.setattr(StepOptimization, "for_replica", lambda self: None)
    twice = executed(2)
    assert sum(once.values()) > 300
    different = {key for key in once | twice if once[key] != twice[key]}
    assert different <= {"Const", "Identity", "NoOp"}, (once - twice, twice - once)


def test_options_are_put_back_and_kept() -> None:
    before = iterations()
    with StepOptimization().running():
        assert iterations() == 1
    assert iterations() == before
    with StepOptimization().running():
        tf.config.optimizer.set_experimental_options({"remapping": True})
    assert iterations() == before


def is_off(config: Any) -> bool:
    rewriting = config.graph_options.rewrite_options
    return bool(rewriting.remapping == rewriting.OFF)


def test_replicas_are_optimized_as_the_program_has_chosen() -> None:
    optimization = StepOptimization()
    for _ in range(2):
        with optimization.running():
            # Also where an earlier trace has been optimized.
            assert not is_off(optimization.for_replica())
            optimization.note_replicas(are_optimized=True)
            options = eager_context.context().function_call_options
            config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
            assert is_off(config)
    with optimization.running():
        optimization.note_replicas(are_optimized=False)
        options = eager_context.context().function_call_options
        assert not is_off(tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized))


def counted(*, is_optimized_first: bool) -> tuple[int, collections.Counter[str]]:
    """Returns the number of ops of a graph of a step on four devices, and the types of those that run."""
    keras.utils.set_random_seed(1)
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with strategy.scope():
        inputs = keras.Input((6, 4))
        x = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs, use_causal_mask=True)
        x = keras.layers.Conv1D(5, 3, activation="relu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization(synchronized=True)(x))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(3, "tanh")(keras.layers.Flatten()(x))))
        model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse", metrics=["mae"], jit_compile=False)
    x, y = np.ones((8, 6, 4), "float32"), np.ones((8, 1), "float32")
    together = mock.patch.object(StepOptimization, "for_replica", return_value=None)
    with contextlib.nullcontext() if is_optimized_first else together:
        made = executed_graphs(lambda: model.fit(x, y, batch_size=8, verbose=0))
    graphs = [graph for each in made for graph in each.partition_graphs]
    parts = sorted(graphs, key=lambda graph: len(graph.node))[-4:]
    ops = collections.Counter(node.op for graph in parts for node in graph.node)
    return sum(ops.values()), ops


def test_as_few_ops_run_as_if_all_replicas_were_optimized() -> None:
    (first, types), (together, others) = (counted(is_optimized_first=is_first) for is_first in (True, False))
    # Two tensors that come from outside may have the same number of rows, which one replica does not show.
    assert first <= 1.05 * together, (types - others, others - types)
