"""Sharded weights: gathered one by one, forward and backward, however the model uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies.collectives.loopback import LOOPBACK
from strategies.engine.strategy import Sharded
from strategies.sharding.backward_gathers import consumers
from tests.strategies.parity.harness import TOLERANCE

L: Any = keras.layers
DEVICES = ["CPU:0", "CPU:1"]
FOUR = [f"CPU:{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def unit_of_each_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOOPBACK, "bucket_bytes", 1)


def chain(again: bool = False) -> keras.Model:
    words = keras.Input((7,), dtype="int32")
    x = L.Embedding(50, 8)(words)
    for k in range(5):
        x = L.Dense(8, "tanh", name=f"hidden_{k}")(x)
    model = keras.Model(words, L.Dense(50)(x))
    return keras_ext.rematerialize(model, [f"hidden_{k}" for k in range(5)]) if again else model


def used_early_and_late() -> keras.Model:
    """Returns a model with a table that is its own inverse, a layer that is called twice, a loop, and attention."""
    words, table, twice = keras.Input((7,), dtype="int32"), L.Embedding(50, 8), L.Dense(8, "tanh")
    x = L.LSTM(8, return_sequences=True)(twice(table(words)))
    x = L.LayerNormalization()(x + twice(x))
    x = L.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(words, Inverse(table)(x))


class Inverse(keras.Layer):
    """Computes scores of the words of a table."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))


def trained(make: Callable[[], keras.Model], shard: Sharded, *, eager: bool = False) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    with strategies.MirroredStrategy(DEVICES, shard=shard).scope():
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-2), loss, run_eagerly=eager)
    words = np.random.default_rng(0).integers(0, 50, (2, 45, 7))
    logs = model.fit(words[0], words[1], batch_size=14, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.array(logs), *model.get_weights()]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(chain, marks=pytest.mark.parity_all),
        functools.partial(chain, again=True),
        used_early_and_late,
    ],
    ids=["chain", "chain, recomputed", "used early and late"],
)
def test_equals_whole_weights(make: Callable[[], keras.Model]) -> None:
    for mine, theirs in zip(trained(make, "weights"), trained(make, None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_equals_whole_weights_in_a_step_that_runs_eagerly() -> None:
    for mine, theirs in zip(trained(chain, "weights", eager=True), trained(chain, None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_function_in_a_step_that_runs_eagerly_is_refused() -> None:
    strategy = strategies.MirroredStrategy(DEVICES, shard="weights")
    with strategy.scope():
        model = chain()
    traced = tf.function(model)
    with pytest.raises(ValueError, match=r"traced in a step which runs eagerly.*its gradient would be lost"):
        strategy.run(lambda: traced(np.ones((3, 7), np.int32)), ())


def gathered_in_a_step(strategy: tf.distribute.Strategy, model: keras.Model) -> list[tf.Operation]:
    """Returns the operations that make whole weights of 6 x 6, in the order in which they were made."""
    with strategy.scope():
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(model.train_step, args=((x, x),))

    graph = step.get_concrete_function(tf.ones((4, 6))).graph
    return [op for op in graph.get_operations() if op.type == "ConcatV2" and op.outputs[0].shape == (36,)]


def test_units_come_in_turn_and_twice() -> None:
    strategy = strategies.MirroredStrategy(DEVICES, shard="weights")
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), *(L.Dense(6, "tanh", use_bias=False) for _ in range(5))])
    whole = gathered_in_a_step(strategy, model)
    # The operations of one replica.
    whole = [op for op in whole if op.device.endswith("CPU:0")]
    products = [[op for op in consumers(op.outputs[0].consumers()[0].outputs) if op.type == "MatMul"] for op in whole]
    # Five gathers in the forward pass; the backward pass reuses the last two and re-gathers the two before them. It
    # does not need the first weight, because nothing needs the gradient of the inputs.
    assert [len(own) for own in products] == [1, 1, 1, 2, 2, 1, 1]
    reads = [{each for tensor in op.inputs[:-1] for each in _ancestors(tensor.op)} for op in whole]
    waits = [{each for op in own if op.type == "ReadVariableOp" for each in op.control_inputs} for own in reads]
    # One unit computes while the next is gathered; a third must wait.
    assert waits[:2] == [set(), set()]
    assert set(products[0]) <= waits[2]
    assert set(products[1]) <= waits[3]
    assert set(products[2]) <= waits[4]
    for (forward, backward), again in zip(reversed(products[3:5]), waits[5:], strict=True):
        assert backward in again
        assert forward not in again


def test_a_pipeline_gathers_once_for_all_micro_batches() -> None:
    strategy = strategies.MirroredStrategy(FOUR, mesh={"data": 2, "pipe": 2}, shard="weights")
    with strategy.scope():
        layers = [keras.Input((6,)), *(L.Dense(6, "tanh", use_bias=False) for _ in range(4))]
        model = keras_ext.PipelineModel(layers, num_microbatches=2, partition="uniform")
    whole = gathered_in_a_step(strategy, model)
    assert sorted(op.device[-1] for op in whole) == list("00112233")


@pytest.mark.parametrize(
    ("axes", "arguments", "policy"),
    [
        ({"data": 2, "pipe": 2}, {}, "float32"),
        ({"data": 2, "pipe": 2}, {"schedule": "interleaved_1f1b", "remat": [1]}, "mixed_bfloat16"),
        pytest.param({"data": 2}, {"num_stages": 4}, "mixed_bfloat16", marks=pytest.mark.parity_all),
    ],
    ids=["a stage on each device", "two, one of them computed again", "four"],
)
def test_a_pipeline_that_drops_weights_gathers_them_for_each_pass(
    axes: dict[str, int], arguments: dict[str, Any], policy: str
) -> None:
    strategy = strategies.MirroredStrategy(FOUR[: 2 * axes.get("pipe", 1)], mesh=axes, shard="weights")
    with strategy.scope():
        layers = [keras.Input((6,)), *(L.Dense(6, "tanh", use_bias=False, dtype=policy) for _ in range(4))]
        model = keras_ext.PipelineModel(
            layers, num_microbatches=2, partition="uniform", reshard_after_pass=True, **arguments
        )
    assert model.get_config()["reshard_after_pass"]
    gathered: dict[str, dict[tf.Operation, list[tf.Operation]]] = {}
    for op in gathered_in_a_step(strategy, model):
        # Each gathered weight is used by one pass, which is a call of a function.
        gathered.setdefault(op.device, {}).setdefault(_pass_of(op), []).append(op)
    assert len(gathered) == 2 * axes.get("pipe", 1)
    for passes in gathered.values():
        # Each device gathers each of its kernels twice per micro-batch; the 4 kernels are divided over "pipe".
        assert sum(map(len, passes.values())) == 16 // axes.get("pipe", 1)
        assert len(passes) == 4 * model.schedule().num_stages // axes.get("pipe", 1)
        kept = [[each.dtype for each in call.outputs if each.shape == (6, 6)] for call in passes]
        # A pass returns rows and, if it goes backward, sums of gradients: no weight, and no cast copy of a weight.
        sums = [[tf.float32] * len(whole) for whole in passes.values()]
        assert sum(each == own for each, own in zip(kept, sums, strict=True)) == len(passes) // 2
        assert sum(each == [] for each in kept) == len(passes) // 2
        before: set[tf.Operation] = set()
        for call, whole in passes.items():
            reads = [each for op in whole for tensor in op.inputs[:-1] for each in _ancestors(tensor.op)]
            # All reads, including those on other devices, wait for the previous pass of the device that needs them.
            for read in reads:
                assert read.type != "ReadVariableOp" or set(read.control_inputs) == before
            assert sum(op.type == "ReadVariableOp" for op in reads) == 2 * len(whole)
            before = {call}


def _pass_of(op: tf.Operation) -> tf.Operation:
    """Returns the call that uses the output of an operation."""
    while op.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        [op] = {each for tensor in op.outputs for each in tensor.consumers()}
    return op


def _ancestors(op: tf.Operation) -> list[tf.Operation]:
    """Returns an operation and its ancestors, back to the reads of variables."""
    return [op, *(each for tensor in op.inputs if op.type != "ReadVariableOp" for each in _ancestors(tensor.op))]


def test_weights_are_whole_to_who_looks_from_outside(tmp_path: Path) -> None:
    with strategies.MirroredStrategy(DEVICES, shard="weights").scope():
        model = chain()
    kernel = model.get_layer("hidden_0").kernel
    assert tuple(kernel.shape) == tuple(kernel.numpy().shape) == (8, 8)
    assert [tuple(each.shape) for each in kernel.value.values] == [(4, 8), (4, 8)]
    kernel.assign(np.ones((8, 8)))
    kernel.assign_add(np.ones((8, 8)))
    np.testing.assert_array_equal(kernel, 2 * np.ones((8, 8)))
    with pytest.raises(ValueError, match="shape"):
        kernel.assign(np.ones((4, 8)))
    words = np.ones((3, 7), np.int32)
    wanted = model(words)
    saved = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    kernel.assign(np.zeros((8, 8)))
    tf.train.Checkpoint(model=model).restore(saved)
    np.testing.assert_allclose(model(words), wanted, atol=1e-6)
    np.testing.assert_allclose(tf.function(model)(words), wanted, atol=1e-6)
