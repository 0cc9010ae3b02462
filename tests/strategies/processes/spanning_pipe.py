"""Pipelines whose stages are in several processes: run by `test_spanning_pipe` in both at once, never collected.

The values that are compared with one device are the same on all ranks: a failing test fails on all, and none waits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_ext
from keras_ext.pipeline import executor
from strategies import layer_api
from strategies.schedules import Action, Kind
from tests.strategies.parity.harness import TOLERANCE, Case, compare, execute, fit_arrays
from tests.strategies.processes.mesh_strategies import on

NUM_LOCAL = int(os.environ.get("SUITE_DEVICES", "1"))
NUM_STAGES = 2 * NUM_LOCAL
ROWS = np.random.default_rng(0).standard_normal((22, 6)).astype("float32")
NUMBERS = ROWS[:, :1] * ROWS[:, 1:2]


def strategy() -> Any:
    return on({"pipe": NUM_STAGES})


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    strategy()


def job() -> Any:
    return strategy().extended.engine.process_group


def on_all_ranks(found: float) -> float:
    """Returns the largest value of all ranks, so that all of them fail if one does."""
    return float(job().gather(tf.constant([found], tf.float64)).numpy().max())


def assert_parity(
    make: Callable[[], keras.Model],
    run: Callable[[Any, Any], Mapping[str, Any]],
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(1e-2),
    compiling: Mapping[str, Any] = {"loss": "mse", "metrics": ["mae"]},
    **pipeline: Any,
) -> None:
    """Trains the model in stages and in plain Keras."""

    def made(spread: bool) -> keras.Model:
        model = make()
        if spread:
            model = keras_ext.PipelineModel(model, **{"partition": "uniform", "num_microbatches": 2, **pipeline})
        model.compile(optimizer(), **compiling)
        model.optimizer.build(model.trainable_variables)
        return model

    one_device = execute(Case("", lambda: made(False), run), None)
    found = execute(Case("", lambda: made(True), run), strategy())
    for value in (*found.weights, *found.slots, *(found.logs[name] for name in sorted(found.logs))):
        each = job().gather(tf.constant(np.asarray(value)[np.newaxis])).numpy()
        assert on_all_ranks(float(not np.array_equal(each[0], each[-1]))) == 0
    difference = compare(one_device, found)
    assert on_all_ranks(difference.largest) <= TOLERANCE, difference


def mlp() -> keras.Model:
    # A layer for each stage of the schedules that have two on each device.
    hidden = [layers.Dense(8, "tanh") for _ in range(2 * NUM_STAGES - 1)]
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])


SCHEDULES = [("gpipe", True), ("interleaved_1f1b", False), ("eager_1f1b", True), ("zb_h1", False), ("zb_v", False)]


@pytest.mark.parametrize(("schedule", "in_line"), SCHEDULES)
def test_schedules_and_functions(schedule: str, in_line: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch has fewer rows than there are micro-batches."""
    monkeypatch.setattr(executor, "MOST_CALLS_IN_LINE", 10**9 if in_line else 0)
    remat = "all_but_last" if schedule == "gpipe" else None
    run = fit_arrays(ROWS, NUMBERS, batch_size=10, epochs=1, predict=False)
    assert_parity(mlp, run, num_microbatches=3, schedule=schedule, remat=remat)


def test_numbers_of_rows_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of rows follow from the batch; the length of sequences that a layer has cut does not."""
    used = []
    channel = layer_api.StageMessages._channel

    def counted(*args: Any) -> Any:
        used.append(args)
        return channel(*args)

    def pooled() -> keras.Model:
        inputs = keras.Input((None, 6))
        x = layers.MaxPooling1D(2)(inputs)
        return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(layers.Dense(8, "tanh")(x))))

    monkeypatch.setattr(layer_api.StageMessages, "_channel", counted)
    for make, x, expected in ((mlp, ROWS, 2), (pooled, np.repeat(ROWS[:, None], 5, 1), 3)):
        with strategy().scope():
            model = keras_ext.PipelineModel(make(), partition="uniform", num_microbatches=3)
            model.compile("sgd", "mse")
        used.clear()
        # A batch of 10 rows, and one of 6.
        spec = tf.TensorSpec([None] * (x.ndim - 1) + [6]), tf.TensorSpec([None, 1])
        batches = [(x[:10], NUMBERS[:10]), (x[10:16], NUMBERS[10:16])]
        dataset = tf.data.Dataset.from_generator(lambda batches=batches: iter(batches), output_signature=spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(2))
        model.fit(dataset, shuffle=False, verbose=0)
        assert on_all_ranks(abs(len(used) - expected * 3)) == 0
        used.clear()
        model.evaluate(dataset, verbose=0)
        assert on_all_ranks(abs(len(used) - (expected - 1) * 3)) == 0


def with_skips() -> keras.Model:
    """Returns a model with values for later stages than the next, and outputs of several stages, one with logits."""
    inputs = keras.Input((6,))
    first = x = layers.Dense(8, "tanh")(inputs)
    early = layers.Dense(3, "softmax", name="early")(x)
    for _ in range(3):
        x = layers.Add()([layers.Dense(8, "relu")(x), first])
    x = layers.Concatenate()([x, first, inputs, early])
    return keras.Model(inputs, {"early": early, "late": layers.Dense(1, name="late")(x)})


def test_skips_and_outputs_of_several_stages() -> None:
    classes = (np.abs(ROWS).sum(axis=1) * 3).astype("int32") % 3
    run = fit_arrays(ROWS, {"early": classes, "late": NUMBERS}, batch_size=8)
    losses = {"early": "sparse_categorical_crossentropy", "late": "mse"}
    for schedule in ("interleaved_1f1b", "v_half"):
        assert_parity(with_skips, run, compiling={"loss": losses}, schedule=schedule)


class Extra(layers.Layer):
    """Adds a sum and a mean over rows to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


def with_losses() -> keras.Model:
    """Returns a model with losses of layers, and penalties of weights, in each stage."""
    inputs = x = keras.Input((6,))
    for i in range(NUM_STAGES):
        penalty = keras.regularizers.L2(0.01)
        x = layers.Dense(8, "tanh", kernel_regularizer=penalty, activity_regularizer="l2" if i % 2 else None)(x)
        x = Extra()(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def test_losses_of_layers_and_penalties() -> None:
    assert_parity(with_losses, fit_arrays(ROWS, NUMBERS, batch_size=8))


def sentences(tied: bool) -> keras.Model:
    """Returns a model of masked sequences of any length, between two uses of one table, or after one use."""
    tokens = keras.Input((None,), dtype="int32")
    table = (layers.ReversibleEmbedding if tied else layers.Embedding)(9, 8, mask_zero=True)
    x = table(tokens)
    for _ in range(NUM_STAGES - 1):
        y = layers.MultiHeadAttention(2, 4, use_bias=False)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return keras.Model(tokens, table(x, reverse=True) if tied else layers.Dense(9)(x))


def of_lengths() -> tf.data.Dataset:
    """Returns batches with different numbers of rows and different lengths, unknown to the traced step."""
    random = np.random.default_rng(3)
    tokens = [random.integers(0, 9, (rows, length)).astype("int32") for rows, length in ((8, 5), (8, 7), (3, 4))]

    def pairs() -> Iterator[Any]:
        for each in tokens:
            each[:, -1] = 0
            yield each, np.roll(each, -1, 1)

    spec = tf.TensorSpec([None, None], tf.int32)
    return tf.data.Dataset.from_generator(pairs, output_signature=(spec, spec)).apply(
        tf.data.experimental.assert_cardinality(len(tokens))
    )


@pytest.mark.parametrize("tied", [True, False])
def test_masks_and_lengths_not_known_when_traced(tied: bool) -> None:
    def run(model: Any, _: Any) -> Mapping[str, Any]:
        history = model.fit(of_lengths(), verbose=0, shuffle=False).history
        tested = model.evaluate(of_lengths(), verbose=0, return_dict=True)
        return {**history, **{f"test_{name}": value for name, value in tested.items()}}

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiling = {"loss": loss, "weighted_metrics": ["accuracy"]}
    assert_parity(functools.partial(sentences, tied), run, compiling=compiling)


class MaskedByItself(layers.Layer):
    """Masks entries by its own values."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return ops.any(x > 0.5, axis=-1)

    def call(self, x: Any) -> Any:
        return x


def test_masks_that_depend_on_weights() -> None:
    def make() -> keras.Model:
        inputs = keras.Input((6, 1))
        x = MaskedByItself()(layers.Dense(4, "relu")(inputs))
        for _ in range(3):
            x = layers.Dense(4, "tanh")(x)
        return keras.Model(inputs, layers.Dense(1)(x))

    run = fit_arrays(ROWS[..., np.newaxis], np.repeat(NUMBERS[..., np.newaxis], 6, 1), batch_size=8)
    assert_parity(make, run)


def lookups() -> keras.Model:
    """Returns a model with one table, which several stages look up."""
    tokens = keras.Input((4,), dtype="int32")
    table = layers.Embedding(9, 8)
    x = layers.Dense(8, "tanh")(layers.Flatten()(table(tokens)))
    for _ in range(NUM_STAGES):
        x = layers.Dense(8, "tanh")(x)
    x = layers.Add()([layers.Flatten()(table(tokens)), layers.Dense(32)(x)])
    return keras.Model(tokens, layers.Dense(1)(x))


def test_one_table_in_several_stages() -> None:
    tokens = np.random.default_rng(4).integers(0, 9, (22, 4))
    assert_parity(lookups, fit_arrays(tokens, NUMBERS, batch_size=8), lambda: keras.optimizers.SGD(0.1))


def learnt_beforehand() -> keras.Model:
    """Returns a model whose first half has nothing to train."""
    normalization = layers.Normalization()
    normalization.adapt(ROWS)
    frozen = layers.Dense(8, "tanh", trainable=False)
    return keras.Sequential([keras.Input((6,)), normalization, frozen, layers.Dense(8, "tanh"), layers.Dense(1)])


@pytest.mark.parametrize("settings", [{"global_clipnorm": 0.05}, {"gradient_accumulation_steps": 2}])
def test_a_stage_that_learns_nothing_in_training(settings: dict[str, Any]) -> None:
    run = fit_arrays(ROWS, NUMBERS, batch_size=8, predict=False)
    partition = ["dense_1"] if NUM_STAGES == 2 else ["dense", "dense_1", "dense_2"]
    assert_parity(learnt_beforehand, run, lambda: keras.optimizers.Adam(1e-2, **settings), partition=partition)


def test_a_call_returns_the_outputs_on_every_rank() -> None:
    keras.utils.set_random_seed(5)
    plain = mlp()
    with strategy().scope():
        model = keras_ext.PipelineModel(plain, num_microbatches=2, partition="uniform")
    for rows in (4, 4, 5):
        found = np.abs(np.asarray(model(ROWS[:rows])) - np.asarray(plain(ROWS[:rows]))).max()
        assert on_all_ranks(float(found)) <= TOLERANCE


def test_one_timeline_of_all_ranks(tmp_path: Path) -> None:
    """On the common clock no pass begins before its inputs have been computed, on any rank."""
    with strategy().scope():
        model = keras_ext.PipelineModel(mlp(), num_microbatches=3, partition="uniform")
        model.compile("adam", "mse")
    before = model.get_weights()
    dataset = tf.data.Dataset.from_tensor_slices((ROWS, NUMBERS)).batch(9, drop_remainder=True).repeat(2)
    timeline = model.pipeline_timeline(dataset, tmp_path / "step.svg")
    assert [(tmp_path / name).exists() for name in ("step.svg", "step.json")] == [job().rank == 0] * 2
    np.testing.assert_equal(model.get_weights(), before)
    num_devices = NUM_STAGES // 2
    assert timeline.device_names == tuple(f"rank {rank} CPU:{i}" for rank in range(2) for i in range(num_devices))
    assert 0 < timeline.clock_error < 1
    cuts = [(stage, i) for stage in range(NUM_STAGES - 1) for i in range(3)]
    needed = [(Action(stage, Kind.FORWARD, i), Action(stage + 1, Kind.FORWARD, i)) for stage, i in cuts]
    needed += [(Action(stage + 1, Kind.BACKWARD, i), Action(stage, Kind.BACKWARD, i)) for stage, i in cuts]
    # Starts are compared, since the end of a pass may be recorded after its results have been sent and used.
    early = max(timeline.times[made][0] - timeline.times[taken][0] for made, taken in needed)
    assert on_all_ranks(early - timeline.clock_error) <= 0


def test_what_would_not_work_is_refused() -> None:
    with strategy().scope():
        model = keras_ext.PipelineModel(mlp(), partition="uniform")
        model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly=False"):
        model.fit(ROWS, NUMBERS, verbose=0)
    inputs = keras.Input((6,))
    shared, x = layers.BatchNormalization(), inputs
    for _ in range(4):
        x = layers.Dense(6)(shared(x))
    with pytest.raises(ValueError, match="changes as it is called"), strategy().scope():
        keras_ext.PipelineModel(keras.Model(inputs, x), partition="uniform")


# ---- messages


def messages() -> Any:
    return layer_api.StageMessages(strategy().extended.engine.parts)


def part() -> int:
    return int(strategy().extended.engine.parts.owned[0])


def traced(function: Callable[..., Any]) -> Any:
    """Runs a function twice, so that a dropped or left-over message shows."""
    compiled = tf.function(function, autograph=False)
    compiled(tf.constant(1.0))
    return compiled(tf.constant(2.0))


def test_tensors_arrive_as_they_were_sent() -> None:
    def tensors(x: tf.Tensor) -> list[tf.Tensor]:
        rows = tf.ones([tf.cast(x, tf.int32), 3])
        return [
            x * rows,
            tf.cast([1, 0, 1], tf.bool),
            tf.cast(x * rows[0], tf.bfloat16),
            tf.constant([[7], [8]], tf.int64),
            tf.cast(x, tf.uint8),
            tf.zeros([0, 2]),
        ]

    def exchanged(x: tf.Tensor) -> list[tf.Tensor]:
        own, expected = messages(), tensors(x)
        said = own.agreed(
            0, [layer_api.Description.from_tensor(each) for each in expected] if own.position == 0 else None
        )
        described = [layer_api.Description.from_json(each) for each in said]
        if own.position == 0:
            own.send(part(), 1, expected)
            return expected
        return own.receive(part(), 0, described)

    for found, wanted in zip(traced(exchanged), tensors(tf.constant(2.0)), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_a_send_whose_result_nobody_uses_is_made() -> None:
    def exchanged(x: tf.Tensor) -> tf.Tensor:
        own = messages()
        if own.position == 0:
            own.send(part(), 1, [3 * x])
            return x
        return own.receive(part(), 0, [layer_api.Description((), "float32", "SAME")])[0]

    assert float(traced(exchanged)) == (2.0 if messages_position() == 0 else 6.0)


def messages_position() -> int:
    return int(strategy().extended.engine.parts.groups.model["pipe"].rank)


def test_receives_that_look_alike_are_not_one() -> None:
    scalar = layer_api.Description((), "float32", "SAME")

    def exchanged(x: tf.Tensor) -> list[tf.Tensor]:
        own = messages()
        if own.position == 0:
            for i in range(3):
                own.send(part(), 1, [x + i])
            return [x + i for i in range(3)]
        return [own.receive(part(), 0, [scalar])[0] for _ in range(3)]

    assert [float(each) for each in traced(exchanged)] == [2, 3, 4]


def test_both_send_first() -> None:
    """Neither send waits for the other, and computation does not wait for a send."""
    scalar = layer_api.Description((), "float32", "SAME")

    def exchanged(x: tf.Tensor) -> tf.Tensor:
        own = messages()
        if own.position == 0:
            own.send(part(), 1, [x + 1])
            return own.receive(part(), 1, [scalar])[0]
        # In the order of the table, which is that of process 0.
        received = own.receive(part(), 0, [scalar])[0]
        own.send(part(), 0, [x + 1])
        return received

    assert float(traced(exchanged)) == 3.0


def test_a_slower_peer_is_waited_for() -> None:
    """One peer computes something large first; the other has posted its receives and sends long before."""
    scalar = layer_api.Description((), "float32", "SAME")

    def exchanged(x: tf.Tensor) -> tf.Tensor:
        own = messages()
        if own.position == 0:
            matrix = tf.fill([512, 512], x / 1024)
            for _ in range(20):
                matrix = matrix @ matrix
            own.send(part(), 1, [x + tf.reduce_sum(matrix) * 0])
            return own.receive(part(), 1, [scalar])[0]
        first = own.receive(part(), 0, [scalar])[0]
        own.send(part(), 0, [first + 1])
        return first + 1

    assert float(traced(exchanged)) == 3.0
