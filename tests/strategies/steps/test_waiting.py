"""Waiting times of a step: they are measured where the step waits, and measuring changes nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies.steps import waiting
from strategies.steps.waiting import Waits
from tests.clock import Clock
from tests.strategies.parity.harness import features

X, Y = features(24, 6), features(24, 2, seed=1)


def mirrored(num_replicas: int) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def slow(seconds: float) -> tf.data.Dataset:
    """Returns batches of two rows, made one after the other in `seconds` each."""

    def make(i: Any) -> Any:
        time.sleep(seconds)
        return np.float32(i)

    def batch(i: tf.Tensor) -> Any:
        value = tf.ensure_shape(tf.numpy_function(make, [i], tf.float32, stateful=True), [])
        return tf.fill([2, 6], value), tf.zeros([2, 1])

    return tf.data.Dataset.range(1000).map(batch)


def not_read_ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


# ---- input


class Source:
    """A dataset of batches of two rows; each becomes available only after a call of `let_through`."""

    def __init__(self) -> None:
        self._let_through = threading.Semaphore(0)
        self.num_asked = 0

    def let_through(self, count: int = 1) -> None:
        self._let_through.release(count)

    def dataset(self) -> tf.data.Dataset:
        def make(i: Any) -> Any:
            self.num_asked += 1
            self._let_through.acquire()
            return np.float32(i)

        def batch(i: tf.Tensor) -> Any:
            value = tf.ensure_shape(tf.numpy_function(make, [i], tf.float32, stateful=True), [])
            return tf.fill([2, 6], value), tf.zeros([2, 1])

        return tf.data.Dataset.range(1000).map(batch)


class ReadClock(Clock):
    """Replaces the clock of TensorFlow, and counts how often ops have read it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0

    def read(self) -> tf.Tensor:
        def now() -> Any:
            self.num_reads += 1
            return np.float64(self.seconds)

        return tf.ensure_shape(tf.numpy_function(now, [], tf.float64, stateful=True), [])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ReadClock:
    clock = ReadClock()
    monkeypatch.setattr(waiting, "_clock", clock.read)
    return clock


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("ending", ["as it is", "prefetched"])
def test_waiting_is_what_the_consumer_waits(num_replicas: int, ending: str, clock: ReadClock) -> None:
    strategy, source = mirrored(num_replicas), Source()
    dataset = source.dataset().prefetch(1) if ending == "prefetched" else source.dataset()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def waited() -> float:
        return strategies.seconds_waited(strategy).input

    try:
        source.let_through()
        next(iterator)
        assert waited() == 0.0
        # The source is late, but the consumer is later: a clock before a prefetch stage would have counted a wait.
        until(lambda: source.num_asked == 2)
        clock.sleep(1.0)
        source.let_through()
        next(iterator)
        assert waited() == 0.0
        # The consumer waits for the source: its request has read the clock.
        until(lambda: source.num_asked == 3)
        num_before = clock.num_reads
        with ThreadPoolExecutor(1) as pool:
            drawn = pool.submit(next, iterator)
            until(lambda: clock.num_reads > num_before)
            clock.sleep(0.5)
            source.let_through()
            drawn.result()
        assert waited() == 0.5
    finally:
        source.let_through(1000)


def test_elements_options_and_length_stay() -> None:
    strategy = mirrored(1)
    ragged = tf.ragged.constant([[1], [2, 3], [4], [5, 6, 7]])
    sparse = tf.sparse.from_dense(np.eye(4, dtype="float32"))
    options = tf.data.Options()
    options.deterministic = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    plain = tf.data.Dataset.from_tensor_slices({"a": ragged, "b": (sparse, X[:4])}).batch(3).with_options(options)
    clocked = strategy.experimental_distribute_dataset(plain)
    assert clocked.element_spec == plain.element_spec
    assert int(clocked.cardinality()) == int(plain.cardinality()) == 2
    assert clocked.options().deterministic is False
    assert (
        clocked.options().experimental_distribute.auto_shard_policy == options.experimental_distribute.auto_shard_policy
    )
    for mine, theirs in zip(clocked, plain, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, tf.nest.flatten(mine, True), tf.nest.flatten(theirs, True))
    assert int(strategy.experimental_distribute_dataset(plain.repeat()).cardinality()) == tf.data.INFINITE_CARDINALITY
    filtered = strategy.experimental_distribute_dataset(plain.filter(lambda _: True))
    assert int(filtered.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    # Keras distributes a dataset again that a user has distributed already: each wait counts once.
    assert strategy.experimental_distribute_dataset(clocked) is clocked


@pytest.mark.parametrize("prefetched", [0, 1])
def test_reads_no_further_ahead(prefetched: int) -> None:
    drawn = []

    def numbers() -> Iterator[Any]:
        for i in range(100):
            drawn.append(i)
            yield np.full([2, 6], i, "float32")

    dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([2, 6]))
    dataset = dataset.prefetch(prefetched) if prefetched else not_read_ahead(dataset)
    iterator = iter(mirrored(1).experimental_distribute_dataset(dataset))
    assert [float(next(iterator)[0, 0]) for _ in range(3)] == [0, 1, 2]
    until(lambda: len(drawn) >= 3 + prefetched)
    assert len(drawn) == 3 + prefetched


class Sleeps(keras.layers.Layer):
    """Takes 60 ms in every step, and notes at their end if the step counts as running."""

    def __init__(self, waits: Waits, note: Callable[[bool], None]) -> None:
        super().__init__()
        self._waits = waits
        self._note = note

    def call(self, x: Any) -> Any:
        if isinstance(x, keras.KerasTensor):
            return x

        def sleep(value: Any) -> Any:
            time.sleep(0.06)
            self._note(bool(np.isinf(self._waits._idle_since.numpy())))
            return value

        @tf.custom_gradient
        def identity(value: tf.Tensor) -> Any:
            return tf.ensure_shape(tf.numpy_function(sleep, [value], tf.float32), value.shape), lambda d: d

        return identity(x)


def test_what_a_clock_measures_is_not_added_twice() -> None:
    waits = Waits(1)
    clocked = waits.clocked(not_read_ahead(slow(0.0)))
    drawn, add_seconds = waits.for_drawing(clocked)
    assert drawn is clocked
    add_seconds(5.0)
    assert waits.seconds().input < 5.0
    _, add_seconds = waits.for_drawing(not_read_ahead(slow(0.0)))
    add_seconds(5.0)
    assert waits.seconds().input >= 5.0


def test_batches_drawn_beside_a_step_are_not_waited_for() -> None:
    waits = Waits(1)
    iterator = iter(waits.clocked(not_read_ahead(slow(0.02))))

    @tf.function
    def step(batch: Any) -> None:
        # TensorFlow may draw at any time during a step; here it draws after the step has begun.
        with waits.running(batch), tf.control_dependencies([waits._idle_since.read_value()]):
            next(iterator)

    first = next(iterator)
    waited = waits.seconds().input
    assert waited >= 0.02
    step(first)
    assert waits.seconds().input == waited
    next(iterator)
    assert waits.seconds().input >= waited + 0.02

    # A draw counts only outside of steps. TensorFlow decides how many draws begin early enough.
    for steps_per_execution in (1, 5):
        strategy, seen = mirrored(1), list[bool]()
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((6,)), Sleeps(strategy.extended.engine.waits, seen.append), keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=steps_per_execution)
        model.fit(not_read_ahead(slow(0.02)), steps_per_epoch=10, verbose=0, shuffle=False)
        if steps_per_execution == 1:
            assert strategies.seconds_waited(strategy).input >= 10 * 0.02
        else:
            assert seen == [True] * 10


# ---- communication


def trained(strategy: Any, watched: bool, *, run_eagerly: bool = False, **settings: Any) -> list[np.ndarray]:
    if watched:
        strategies.measure_communication(strategy)
    keras.utils.set_random_seed(3)
    accumulated = settings.pop("gradient_accumulation_steps", None)
    with strategy.scope():
        layers = [keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(16, "relu")]
        model = keras.Sequential([*layers, keras.layers.Dense(2)])
        if "pipe" in strategy.mesh.axes:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        if "tensor" in strategy.mesh.axes:
            model = keras_ext.parallelize(model)
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=accumulated)
        model.compile(optimizer, "mse", run_eagerly=run_eagerly, **settings)
    model.fit(X, Y, batch_size=5, verbose=0, shuffle=False)
    return [np.asarray(weight) for weight in model.get_weights()]


def sums_after_the_clock(communicating: Any, moment_after: Any) -> Any:
    """Returns `Waits.communicating` with sums that wait until the time of the last gradient has been read."""

    @contextlib.contextmanager
    def ordered(waits: Waits, terms: Any) -> Iterator[list[Any]]:
        read: list[tf.Tensor] = []

        def noted(values: Any) -> tf.Tensor:
            read.append(moment_after(waits, values))
            return read[-1]

        with (
            mock.patch.object(waits, "moment_after", noted),
            communicating(waits, terms) as sums,
            tf.control_dependencies(list(read)),
        ):
            yield sums

    return ordered


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        ({"data": 2}, {"steps_per_execution": 3}),
        ({"data": 2}, {"gradient_accumulation_steps": 2}),
        ({"data": 2}, {"run_eagerly": True}),
        ({"data": 2, "tensor": 2}, {}),
        ({"data": 2, "pipe": 2}, {}),
    ],
    ids=str,
)
def test_watching_changes_no_number(
    mesh: dict[str, int], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threads decide if the time of the last gradient is read before the sums begin, and so if a wait is seen at all.
    monkeypatch.setattr(Waits, "communicating", sums_after_the_clock(Waits.communicating, Waits.moment_after))

    def make() -> strategies.MirroredStrategy:
        devices = [f"CPU:{i}" for i in range(int(np.prod(list(mesh.values()))))]
        return strategies.MirroredStrategy(devices, mesh=mesh)

    plain, watching = make(), make()
    expected = trained(plain, False, **settings)
    begin = time.perf_counter()
    received = trained(watching, True, **settings)
    elapsed = time.perf_counter() - begin
    for one, other in zip(expected, received, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
    assert strategies.seconds_waited(plain).communication is None
    waited = strategies.seconds_waited(watching).communication
    assert waited is not None
    assert 0 < waited < elapsed


def test_one_replica_waits_for_nobody() -> None:
    strategy = mirrored(1)
    trained(strategy, True)
    assert strategies.seconds_waited(strategy).communication == 0.0


def test_from_the_last_gradient_to_the_last_sum(clock: ReadClock) -> None:
    waits = Waits(num_replicas=2)
    waits.measures_communication = True

    def late(value: tf.Tensor, seconds: float) -> tf.Tensor:
        def sleep(v: Any) -> Any:
            clock.sleep(seconds)
            return v

        return tf.numpy_function(sleep, [value], tf.float32)

    @tf.function
    def step(x: tf.Tensor) -> None:
        gradients = [late(x, 0.0625), late(x, 0.25)]
        with waits.communicating(gradients) as sums:
            sums += [gradients[0] + 1.0, late(gradients[1], 0.125)]

    step(tf.zeros([]))
    step(tf.zeros([]))
    assert waits.seconds().communication == 2 * 0.125


# ---- interface


def test_other_strategies_are_refused() -> None:
    for ask in (strategies.seconds_waited, strategies.measure_communication):
        with pytest.raises(ValueError, match="Only the strategies of this package measure"):
            ask(tf.distribute.get_strategy())


def test_the_result_is_a_value() -> None:
    waited = strategies.seconds_waited(mirrored(1))
    assert waited == strategies.SecondsWaited(input=0.0, communication=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        waited.input = 1.0  # type: ignore[misc]
