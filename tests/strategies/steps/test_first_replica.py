"""One local replica is traced for all: the others' graphs, what cannot be traced once, and its numbers.

The parity tests of several devices in a process run under it, too.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import planning
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
    original = Steps._run

    def record(steps: Steps, *args: Any, traces_once: bool) -> Any:
        if not tf.executing_eagerly():
            found.graphs.append((tf.compat.v1.get_default_graph(), steps, traces_once))
        return original(steps, *args, traces_once=traces_once)

    monkeypatch.setattr(Steps, "_run", record)
    return found


def signatures(step: tuple[Any, Steps, bool]) -> tuple[dict[Any, list[Any]], set[Any]]:
    """Describes the ops of a step's graph by what they compute: their type, device, attributes, and all before them.

    Returns:
        The ops by their descriptions, and (description, descriptions of the ops that it waits for).
    """
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
        # Of an argument of the function, the device says nothing.
        device = "" if op.type == "Placeholder" else op.device
        keys[op.name] = hash((op.type, device, captured.get(op.name), values, inputs))
        found[keys[op.name]].append(op)
    waits = {(keys[op.name], frozenset(keys[each.name] for each in op.control_inputs)) for op in graph.get_operations()}
    return found, waits


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


def model_in(
    strategy: tf.distribute.Strategy | None, *, dropout: float = 0.0, synchronized: bool = True
) -> keras.Model:
    def build() -> keras.Model:
        keras.utils.set_random_seed(5)
        inputs = keras.Input((6,))
        x = keras.layers.BatchNormalization(synchronized=synchronized)(
            keras.layers.Dense(7, use_bias=False, kernel_regularizer="l2")(inputs)
        )
        x = Counted(name="counted")(x)
        # Replicas synchronize between the forward and the backward pass of the branch and the loop.
        x = keras.layers.Dense(5, activation="tanh", use_bias=False)(x)
        x = keras.layers.BatchNormalization(synchronized=synchronized)(x)
        x = keras.layers.Dropout(dropout)(keras.layers.LayerNormalization()(x))
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse", metrics=["mae"], jit_compile=False)
        return model

    if strategy is None:
        return build()
    with strategy.scope():
        return build()


def trace_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes strategies trace each replica."""
    monkeypatch.setattr(Steps, "can_trace_once", property(lambda _: False, lambda *_: None), raising=False)


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


@pytest.mark.parametrize(
    ("shard", "size"), [(None, None), ("gradients", None), ("weights", 2), ("central", None)], ids=str
)
@pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")
def test_graph_is_that_of_traced_replicas(
    shard: Any, size: int | None, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each weight is a unit that is gathered when the one before the last has been used.
    monkeypatch.setattr(planning, "is_small", lambda *_: False)
    monkeypatch.setattr(planning, "has_room", lambda *_: False)

    def train() -> keras.Model:
        if shard == "central":
            model = model_in(strategies.CentralStorageStrategy(devices(3), "CPU:7"))
        else:
            strategy = strategies.MirroredStrategy(devices(4), shard=shard, shard_size=size)
            model = model_in(strategy, synchronized=shard != "weights")
        model.fit(X, Y, batch_size=8, verbose=0)
        return model

    models = [train()]
    trace_each(monkeypatch)
    models.append(train())
    (once, once_waits), (each, each_waits) = map(signatures, traced.graphs)
    del models
    assert len(once) > 300
    different = [op for key, ops in once.items() if len(each[key]) < len(ops) for op in ops]
    # The index of the first row of each replica is computed outside of the replicas. Gathers wait for one op.
    assert {op.type for op in different} <= {"Const", "Identity", "AddV2", "NoOp"}, different
    assert not [op for key, ops in each.items() if not once[key] for op in ops]
    # Copies have each op without effects once, and all ops with effects.
    fewer = [op for key, ops in each.items() if len(once[key]) < len(ops) for op in ops]
    assert len(fewer) > 100
    # Shards are read once for all replicas; and a variable is read once between two writes of it.
    assert {op.type for op in fewer if op.op_def.is_stateful} <= {"ReadVariableOp"}
    if shard == "weights":
        check_waits_of_gathers(traced.graphs[0][0])
        return
    known = {op.name for op in different}
    assert not [once[key] for key, before in once_waits - each_waits if not known & {op.name for op in once[key]}]
    assert each_waits <= once_waits


def check_waits_of_gathers(graph: Any) -> None:
    """Checks that gathers wait until all devices have used other weights."""
    reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp" and "all_gather" in op.name]
    ready = {before for op in reads for before in op.control_inputs}
    assert all(len(op.control_inputs) == 1 for op in reads)
    waits = [{before.device[-1] for before in op.control_inputs} for op in ready if op.control_inputs]
    assert len(waits) > 10
    assert all(each == set("0123") for each in waits), waits


def test_random_numbers_are_those_of_traced_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    once = results(model_in(strategies.MirroredStrategy(devices(2)), dropout=0.4))
    trace_each(monkeypatch)
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


def loop(
    strategy: tf.distribute.Strategy | None, model: keras.Model, call: Callable[[Any], Any], *, nested: bool
) -> list[Any]:
    """Trains in a loop of its own, whose replicas run a ``tf.function``; returns losses and weights."""

    @tf.function
    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((model(call(x), training=True) - y) ** 2, 1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_weights)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    def step(x: Any, y: Any) -> Any:
        if strategy is None:
            return replica_step(x, y)
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    run = tf.function(step) if nested else step
    batches = tf.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(8).repeat(2)
    if strategy is not None:
        batches = strategy.experimental_distribute_dataset(batches)
    return [[float(run(*batch)) for batch in batches], *model.get_weights()]


def test_a_function_of_a_custom_loop_is_traced_once(traced: Traced) -> None:
    strategy = strategies.MirroredStrategy(devices(4))
    own = loop(strategy, model_in(strategy), tf.identity, nested=True)
    # A tf.function that makes variables, such as the optimizer's, is traced twice.
    assert [once for *_, once in traced.graphs] == [True, True]
    for value, other in zip(own, loop(None, model_in(None), tf.identity, nested=True), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


def test_a_function_of_a_custom_loop_whose_replicas_differ_is_traced_for_each(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def trained() -> list[Any]:
        strategy = strategies.MirroredStrategy(devices(2))
        return loop(strategy, model_in(strategy), synchronizes_late, nested=False)

    with caplog.at_level(logging.DEBUG, logger="strategies"):
        own = trained()
    assert "'replica_step': each replica is traced, as its program asks for the number of the replica." in caplog.text
    assert [once for *_, once in traced.graphs] == [True, False, False]
    trace_each(monkeypatch)
    for value, other in zip(own, trained(), strict=True):
        np.testing.assert_array_equal(value, other)


def test_shards_that_are_gathered_twice_around_synchronization_are_traced_once(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "is_small", lambda *_: False)
    monkeypatch.setattr(planning, "has_room", lambda *_: False)
    expected = results(model_in(None))
    own = results(model_in(strategies.MirroredStrategy(devices(2), shard="weights")))
    for value, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)
    assert all(once for *_, once in traced.graphs)


def test_tables_whose_rows_are_sharded_are_traced_for_each_replica(caplog: pytest.LogCaptureFixture) -> None:
    def trained(strategy: tf.distribute.Strategy | None) -> list[Any]:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            keras.utils.set_random_seed(5)
            table = keras_ext.ShardedEmbedding(9, 4)
            model = keras.Sequential([keras.Input((2,), dtype="int32"), table, keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
        rows = np.arange(16).reshape(8, 2) % 9
        return [*model.fit(rows, Y[:8], batch_size=4, verbose=0).history.values(), *model.get_weights()]

    with caplog.at_level(logging.DEBUG, logger="strategies"):
        own = trained(strategies.MirroredStrategy(devices(2), shard="optimizer"))
    assert "has its own rows of a weight" in caplog.text
    for value, other in zip(own, trained(None), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)
