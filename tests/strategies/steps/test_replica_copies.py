"""One local replica is traced for all: the others' graphs, what cannot be traced once, and its numbers.

The parity tests of several devices in a process run under it, too.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.batches.shares import NotAlikeError
from strategies.steps.context import trainer_call
from strategies.steps.replica_copies import ReplicaCopies
from strategies.steps.step import Steps

X = np.random.default_rng(3).normal(size=(22, 6)).astype("float32")
Y = X.sum(1, keepdims=True)
#: Attributes with names that are of one graph only.
UNLIKE = ("_user_specified_name", "_class", "_gradient_op_type", "then_branch", "else_branch", "cond", "body", "f")


class Traced:
    """Records the graph of each step, and if one replica may be traced for all."""

    def __init__(self) -> None:
        self.graphs: list[tuple[Any, Steps, bool]] = []


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    found = Traced()
    original = Steps._run_replicas

    def record(steps: Steps, *args: Any) -> Any:
        if not tf.executing_eagerly():
            found.graphs.append((tf.compat.v1.get_default_graph(), steps, trainer_call().traces_once))
        return original(steps, *args)

    monkeypatch.setattr(Steps, "_run_replicas", record)
    return found


def signatures(step: tuple[Any, Steps, bool]) -> dict[Any, list[Any]]:
    """Returns the ops of a step's graph by what they compute: their type, device, attributes, and all before them."""
    graph, steps, _ = step
    components = {
        id(handle): (k, r)
        for k, each in enumerate(steps.components.resources().values())
        for r, handle in enumerate(each)
    }
    captured = {inner.op.name: components.get(id(outer), "other") for outer, inner in graph.captures}
    keys: dict[str, int] = {}
    waiting, found = graph.get_operations()[::-1], collections.defaultdict(list)
    while waiting:
        op = waiting.pop()
        # The accumulators that a loop takes were made after it.
        before = [each.op for each in op.inputs if each.op.name not in keys]
        if op.name in keys or before:
            waiting += [] if op.name in keys else [op, *before]
            continue
        own = {name: value for name, value in op.node_def.attr.items() if name not in UNLIKE}
        inputs = tuple((keys[each.op.name], each.value_index) for each in op.inputs)
        values = tuple(sorted((name, value.SerializeToString()) for name, value in own.items()))
        keys[op.name] = hash((op.type, op.device, captured.get(op.name), values, inputs))
        found[keys[op.name]].append(op)
    return found


class Counted(keras.layers.Layer):
    """Counts the calls that are traced; has a branch and a loop with weights in them, and drops values."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros")
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        self.seen.assign(self.seen * 0.5 + keras.ops.mean(x))
        big = tf.cond(self.scale > 0.0, lambda: x * self.scale, lambda: x / (1.0 + self.scale))
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * self.scale), [0, big])[1]


def model_in(strategy: tf.distribute.Strategy | None, *, dropout: float = 0.0) -> keras.Model:
    def build() -> keras.Model:
        keras.utils.set_random_seed(5)
        inputs = keras.Input((6,))
        x = keras.layers.BatchNormalization(synchronized=True)(
            keras.layers.Dense(7, use_bias=False, kernel_regularizer="l2")(inputs)
        )
        x = Counted(name="counted")(x)
        # Replicas synchronize between the forward and the backward pass of the branch and the loop.
        x = keras.layers.Dense(5, activation="tanh", use_bias=False)(x)
        x = keras.layers.BatchNormalization(synchronized=True)(x)
        x = keras.layers.Dropout(dropout)(keras.layers.LayerNormalization()(x))
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse", metrics=["mae"], jit_compile=False)
        return model

    if strategy is None:
        return build()
    with strategy.scope():
        return build()


def devices(count: int) -> list[str]:
    return [f"CPU:{i}" for i in range(count)]


def results(model: keras.Model) -> list[Any]:
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    scores = model.evaluate(X, Y, batch_size=8, verbose=0)
    return [*history.values(), scores, model.predict(X, batch_size=8, verbose=0), *model.get_weights()]


def test_one_replica_is_traced_and_numbers_are_those_of_one_device(traced: Traced) -> None:
    expected = results(model_in(None))
    traced.graphs.clear()
    model = model_in(strategies.MirroredStrategy(devices(4)))
    counted = model.get_layer("counted")
    before = counted.calls
    for own, other in zip(results(model), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-6)
    # One call infers shapes; one each traces training, evaluation, and prediction of 8 rows. Prediction of 6 rows is
    # traced for each replica, since the replicas have different static numbers of rows.
    assert counted.calls - before == 1 + 3 + 4
    assert all(once for *_, once in traced.graphs)
    for graph, *_ in traced.graphs:
        for op in graph.get_operations():
            if op.name.startswith("replica_") and op.device:
                assert op.device.endswith(f"CPU:{op.name[8]}"), (op.name, op.device)
        # As TensorBoard reads it.
        assert graph._as_graph_def(add_shapes=True)
        for function in graph.as_graph_def().library.function:
            name = function.signature.name
            if "_replica_" in name:
                found = {node.device for node in function.node_def if node.device}
                replica = name.split("_")[-2]
                assert all(each.endswith(f"CPU:{replica}") for each in found), (name, found)


def test_graph_is_that_of_traced_replicas(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    model_in(strategies.MirroredStrategy(devices(3))).fit(X, Y, batch_size=8, verbose=0)
    monkeypatch.setattr(Steps, "_traces_once", lambda steps: False)
    model_in(strategies.MirroredStrategy(devices(3))).fit(X, Y, batch_size=8, verbose=0)
    once, each = map(signatures, traced.graphs)
    assert len(once) > 300
    different = [op for key, ops in once.items() if len(each[key]) < len(ops) for op in ops]
    # The index of the first row of each replica is computed outside of the replicas.
    assert {op.type for op in different} <= {"Const", "Identity", "AddV2"}, different
    assert not [op for key, ops in each.items() if not once[key] for op in ops]
    # What a replica computes more than once, copies compute once; ops with effects are all copied.
    fewer = [op for key, ops in each.items() if len(once[key]) < len(ops) for op in ops]
    assert len(fewer) > 300
    assert not [op for op in fewer if op.op_def.is_stateful]


def test_random_numbers_are_those_of_traced_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    once = results(model_in(strategies.MirroredStrategy(devices(2)), dropout=0.4))
    monkeypatch.setattr(Steps, "_traces_once", lambda steps: False)
    each = results(model_in(strategies.MirroredStrategy(devices(2)), dropout=0.4))
    for one, other in zip(once, each, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def asks_for_number(x: Any) -> Any:
    context = tf.distribute.get_replica_context()
    return x * (1.0 if context is None else tf.cast(context.replica_id_in_sync_group + 1, tf.float32))


def draws_with_tensorflow(x: Any) -> Any:
    return x + 0.0 * tf.random.normal(tf.shape(x))


def synchronizes_late(x: Any) -> Any:
    """Asks after the first merge call."""
    context = tf.distribute.get_replica_context()
    if context is not None:
        x = x + 0.0 * context.all_reduce("SUM", tf.reduce_sum(x))
    return asks_for_number(x)


@pytest.mark.parametrize("call", [asks_for_number, draws_with_tensorflow, synchronizes_late])
@pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")
def test_programs_that_differ_are_traced_for_each_replica(
    call: Callable[[Any], Any], traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x: Any) -> Any:
            return self.dense(call(x))

    strategy = strategies.MirroredStrategy(devices(2))
    with strategy.scope():
        model = Model()
        model.compile("sgd", "mse", jit_compile=False)
    with caplog.at_level(logging.DEBUG, logger="strategies"):
        predicted = model.predict(X[:4], batch_size=4, verbose=0)
        model.fit(X, Y, batch_size=8, verbose=0)
    factors = np.array([[1.0], [1.0], [2.0], [2.0]]) if call is not draws_with_tensorflow else 1.0
    np.testing.assert_allclose(predicted, X[:4].sum(1, keepdims=True) * factors, rtol=1e-5)
    assert [once for *_, once in traced.graphs].count(True) == 2
    assert not traced.graphs[-1][-1]
    reasons = [record.getMessage() for record in caplog.records if "each replica is traced" in record.getMessage()]
    expected = "draws random numbers" if call is draws_with_tensorflow else "number of the replica"
    assert len(reasons) == 2
    assert all(expected in reason for reason in reasons)


def in_graph(check: Callable[[ReplicaCopies], None]) -> None:
    """Calls a function in the graph of a ``tf.function``, with copies for two devices."""

    @tf.function(autograph=False)
    def traced() -> None:
        graph = tf.compat.v1.get_default_graph()
        check(ReplicaCopies(graph, [("/device:CPU:0", "/device:CPU:1")], dict))

    traced.get_concrete_function()


def test_refuses_values_that_differ() -> None:
    def check(copies: ReplicaCopies) -> None:
        one, other = tf.constant([1.0]), tf.constant([2.0])
        for values in (
            [{"a": one}, {"a": tf.constant([1.0, 2.0])}],
            [{"a": one}, {"a": tf.constant([1])}],
            [{"a": one}, {"b": one}],
            [1, 2],
        ):
            with pytest.raises(NotAlikeError):
                copies.pair(values)
        copies.pair([one, other])
        with pytest.raises(NotAlikeError, match="stands for different ones"):
            copies.pair([one, one + 1.0])
        copied = copies.for_replica({"a": one, "b": 3}, 1)
        assert copied["a"] is other
        assert copied["b"] == 3

    in_graph(check)


def test_copies_once_what_is_computed_twice() -> None:
    def check(copies: ReplicaCopies) -> None:
        copies.begin()
        with tf.device("/device:CPU:0"):
            ones: list[Any] = [tf.constant(1.0) for _ in range(4)]
            roots = [tf.sqrt(one) for one in ones]
        ones[2]._keras_strategies_summed_over_rows = True
        roots[3]._keras_strategies_summed_over_rows = True
        copies.copy()
        with tf.device("/device:CPU:0"):
            later = tf.add_n(roots)
        copies.copy()
        constants, copied = (copies.for_replica(values, 1) for values in (ones, roots))
        assert constants[1] is constants[0]
        assert copied[1] is copied[0]
        # Marked ones stay apart, those that take them do not.
        assert constants[2] is not constants[0]
        assert constants[2]._keras_strategies_summed_over_rows
        assert copied[2] is copied[0]
        assert copied[3] is not copied[0]
        assert not hasattr(copied[0], "_keras_strategies_summed_over_rows")
        assert list(copies.for_replica(later, 1).op.inputs) == copied

    in_graph(check)


def test_copies_control_edges_and_marks() -> None:
    def check(copies: ReplicaCopies) -> None:
        before = tf.raw_ops.NoOp(name="before")
        copies.begin()
        with tf.device("/device:CPU:0"):
            first = tf.constant(1.0, name="first")
            with tf.control_dependencies([before, tf.raw_ops.NoOp(name="own")]):
                second: Any = tf.identity(first, name="second")
        second._keras_strategies_summed_over_rows = True
        copies.copy()
        with tf.device("/device:CPU:0"):
            third = tf.add(second, first)
        copies.copy()
        copied = copies.for_replica(third, 1)
        assert copied.device == "/device:CPU:1"
        assert [each.op.type for each in copied.op.inputs] == ["Identity", "Const"]
        assert copied.op.inputs[0] is copies.for_replica(second, 1)
        assert {op.name for op in copied.op.inputs[0].op.control_inputs} == {"before", "replica_1/own"}
        assert copies.for_replica(second, 1)._keras_strategies_summed_over_rows

    in_graph(check)
