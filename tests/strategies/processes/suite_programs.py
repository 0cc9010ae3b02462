"""Programs on two ranks, and their waiting times: run by `test_suites` in two processes at once, never collected."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
import tests.strategies._keras_hooks.test_distributed_models as models
import tests.strategies.steps.test_state_writes as state
from strategies._keras_hooks import callbacks as hooked
from strategies._keras_hooks.input_bottleneck import SlowInputWarning
from strategies.steps import waiting
from tests.strategies.processes.ranks import (
    Policy,
    all_ranks,
    counter,
    dense,
    digest,
    rank,
    regression,
    strategy,
    with_policy,
)

# Keras warns of every dataset of unknown length, with or without a strategy.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


class TestCallsOfKerasModel:
    """A class calls ``keras.Model.train_step(self, data)`` in place of ``super().train_step(data)``."""

    def test_steps_are_those_of_one_device(self) -> None:
        def trained(scope: Any) -> list[Any]:
            keras.utils.set_random_seed(2)
            with scope:
                model = models.Explicit()
                model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "mse", metrics=["mae", "r2_score"])
            options: dict[str, Any] = {"batch_size": 5, "verbose": 0}
            history = model.fit(models.X, models.Y, epochs=2, shuffle=False, **options).history
            return [*history.values(), *model.evaluate(models.X, models.Y, **options), *model.get_weights()]

        for ours, plain in zip(trained(strategy().scope()), trained(contextlib.nullcontext()), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-6)

    def test_fit_is_refused(self) -> None:
        with strategy().scope():
            model = models.ExplicitEntries()
            model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=r"super\(\).fit\(...\) in place of keras.Model.fit\(self, ...\)"):
            model.fit(models.X, models.Y, verbose=0)


class TestWaiting:
    @pytest.mark.parametrize("policy", [Policy.AUTO, Policy.OFF])
    def test_for_input(self, policy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(
            hooked,
            "SlowInputWarning",
            # Any wait is too long. `test_waiting` tests how long it is.
            functools.partial(SlowInputWarning, share=0.0, seconds=0.0, steps=2),
        )

        def slow() -> Iterator[Any]:
            for _ in range(6):
                time.sleep(0.02)
                yield np.ones([4, 1], "float32"), np.zeros([4, 1], "float32")

        spec = (tf.TensorSpec([4, 1]), tf.TensorSpec([4, 1]))
        dataset = tf.data.Dataset.from_generator(slow, output_signature=spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(6))
        before = strategies.seconds_waited(strategy()).input
        begin = time.perf_counter()
        # In the first epoch batches are prepared while the step is traced.
        counter().fit(with_policy(dataset, policy), epochs=2, verbose=0, shuffle=False)
        elapsed = time.perf_counter() - begin
        waited = strategies.seconds_waited(strategy()).input - before
        assert all(0 < each < limit for each, limit in zip(all_ranks(waited), all_ranks(elapsed), strict=True))
        lines = [record for record in caplog.records if "Input is the bottleneck" in record.getMessage()]
        assert all_ranks(len(lines)) == [1, 0]

    def test_for_others(self, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rank 1 comes late to every sum; measuring it changes no number."""
        clock = SharedClock(shared, monkeypatch)

        class Late(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                if isinstance(x, keras.KerasTensor):
                    return x

                def wait(value: Any) -> Any:
                    clock.take_step()
                    return value

                @tf.custom_gradient
                def identity(value: tf.Tensor) -> Any:
                    return tf.ensure_shape(tf.numpy_function(wait, [value], tf.float32), value.shape), lambda d: d

                return identity(x)

        def weights() -> list[np.ndarray]:
            keras.utils.set_random_seed(4)
            with strategy().scope():
                model = keras.Sequential([keras.Input((4,)), Late(), keras.layers.Dense(8), keras.layers.Dense(1)])
                optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
                model.compile(optimizer, "mse", steps_per_execution=3)
            x, y = regression()
            model.fit(x, y, batch_size=3, verbose=0, shuffle=False)
            return [np.asarray(weight) for weight in model.get_weights()]

        expected = weights()
        strategies.measure_communication(strategy())
        clock.num_steps = 0
        for one, other in zip(weights(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
        waited = strategies.seconds_waited(strategy()).communication
        assert waited is not None
        # Ten steps, one sum for every two.
        assert all_ranks(waited) == [5 * clock.LATE_SECONDS, 0.0]


class SharedClock:
    """A clock of both ranks for their waits in sums. Rank 1 moves it, when rank 0 has begun to wait."""

    LATE_SECONDS = 0.0625

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        #: The number of steps of this rank; None: nobody is late.
        self.num_steps: int | None = None
        self._num_reads = 0
        moment_after = waiting.Waits.moment_after

        def read_after(waits: waiting.Waits, values: Any) -> tf.Tensor:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(waiting, "_clock", self._read)
                return moment_after(waits, values)

        monkeypatch.setattr(waiting.Waits, "moment_after", read_after)

    def _read(self) -> tf.Tensor:
        def read() -> Any:
            self._num_reads += 1
            now = np.float64(self.LATE_SECONDS * len(list(self._folder.glob("late *"))))
            if rank() == 0:
                # After the time is read: rank 1 moves the clock as soon as the file exists.
                (self._folder / f"read {self._num_reads}").touch()
            return now

        return tf.ensure_shape(tf.numpy_function(read, [], tf.float64, stateful=True), [])

    def take_step(self) -> None:
        """Counts a step; in the second one of each sum, rank 1 waits for rank 0."""
        if self.num_steps is None:
            return
        self.num_steps += 1
        if rank() == 1 and self.num_steps % 2 == 0:
            # Rank 0 reads the clock before each sum and after it.
            end = time.monotonic() + 60
            while not (self._folder / f"read {self.num_steps - 1}").exists():
                assert time.monotonic() < end
                time.sleep(0.005)
            (self._folder / f"late {self.num_steps}").touch()


class TestState:
    """The state that steps write is that of the global batch, also if a batch has rows for one rank only."""

    @pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.parity_all)])
    def test_it_is_that_of_one_device(self, size: int) -> None:
        cases = {name: state.EQUAL[name] for name in ("sum", "count", "decayed_sum", "mean", "maximum", "quotient")}
        cases |= {"written_twice": state.EQUAL["written_twice"], "of_tensorflow": state.EQUAL["of_tensorflow"]}
        rows = 3 * size + 1
        expected = state.written(tf.distribute.get_strategy(), cases, size, num_rows=rows)
        state.check_equal(state.written(strategy(), cases, size, num_rows=rows), expected)

    def test_declared_sums_and_metrics(self) -> None:
        cases = {name: state.EQUAL[name] for name in ("sum", "count", "same")}
        expected = state.written(tf.distribute.get_strategy(), cases)
        state.check_equal(state.written(strategy(), cases, weight={"aggregation": "sum"}), expected)
        evaluated = state.evaluated(tf.distribute.get_strategy(), state.METRICS)
        state.check_equal(state.evaluated(strategy(), state.METRICS), evaluated)

    def test_of_the_first_replica(self) -> None:
        case = {"first": lambda v, n, x: v.assign(x[0])}
        got = state.written(strategy(), case, 5, weight={"aggregation": "only_first_replica"})
        assert np.unique(all_ranks(got["first"][0][0])).tolist() == [state.X[5, 0]]


class TestPrograms:
    @pytest.mark.parametrize(
        ("kind", "steps_per_execution", "name", "accumulation"),
        [
            ("filtered", 1, "SGD", None),
            ("filtered", 1, "Adam", 2),
            ("python", 1, "SGD", 2),
            ("filtered", 3, "SGD", None),
        ],
    )
    def test_steps_are_counted_as_on_one_device(
        self, kind: str, steps_per_execution: int, name: str, accumulation: int | None
    ) -> None:
        """At the end of a dataset of unknown length Keras counts a step that has no batch, which moves the rate."""
        x, y = regression()

        def python() -> Iterator[Any]:
            for i in range(0, 30, 4):
                yield x[i : i + 4], y[i : i + 4]

        def counted(scope: Any) -> list[Any]:
            with scope:
                dropout = keras.layers.Dropout(0.5, seed=1)
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), dropout, keras.layers.Dense(1)])
                rate = 0.1 if accumulation else keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
                optimizer = getattr(keras.optimizers, name)(rate, gradient_accumulation_steps=accumulation)
                model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
            batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).filter(lambda *_: True)
            for _ in range(2):
                model.fit(python() if kind == "python" else batches, verbose=0, shuffle=False)
            seed = np.asarray(dropout.seed_generator.state).tolist()
            return [int(optimizer._iterations), seed, float(keras.ops.convert_to_numpy(optimizer.learning_rate))]

        expected = counted(contextlib.nullcontext())
        received = counted(strategy().scope())
        assert received == expected
        assert all_ranks(received[0]) == [expected[0]] * 2
        # 16 batches, and a step at each end, which is not counted where Adam's accumulated gradients need the count.
        ends = 2 * (steps_per_execution == 1)
        assert expected[:2] == [16 if name == "Adam" and accumulation else 16 + ends, [1, 16 + ends]]

    def test_initial_weights_are_rank_0s(self) -> None:
        keras.utils.set_random_seed(10 + rank())
        with strategy().scope():
            layer = keras.layers.Dense(3)
            layer.build((None, 4))
        assert all_ranks(float(np.asarray(layer.kernel).sum())) == [float(np.asarray(layer.kernel).sum())] * 2

    def test_a_custom_loop(self) -> None:
        x, y = regression()
        model = dense()
        dataset = strategy().experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(7))
        with strategy().scope():
            optimizer = keras.optimizers.SGD(0.1)

        @tf.function
        def step(features: Any, targets: Any) -> tf.Tensor:
            def replica(features: Any, targets: Any) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    loss = keras.losses.MeanSquaredError()(targets, model(features, training=True))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            return strategy().reduce("SUM", strategy().run(replica, args=(features, targets)), axis=None)

        losses = [float(step(features, targets)) for features, targets in dataset]
        assert all_ranks(losses[-1]) == [losses[-1]] * 2
        assert losses[-1] < losses[0]
        assert all_ranks(digest(model)) == [digest(model)] * 2

    def test_steps_are_traced_alike_when_one_rank_keeps_its_number_of_rows(self) -> None:
        x = np.arange(15, dtype="float32")[:, None]
        dataset = tf.data.Dataset.from_tensor_slices(x).batch(7)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(x[:8]))  # 7, 7, 1 and 8 rows: rank 0 has 4, 4, 1, 4

        @tf.function
        def step(features: Any) -> tf.Tensor:
            return strategy().reduce("SUM", strategy().run(tf.reduce_sum, args=(features,)), axis=None)

        assert sum(len(batch.values) for batch in strategy().experimental_distribute_dataset(dataset)) == 4
        totals = [float(step(features)) for features in strategy().experimental_distribute_dataset(dataset)]
        assert totals[:2] == [21.0, 70.0]
        assert totals[3] == 28.0
        prediction = dense().predict(np.zeros((15, 4), "float32"), batch_size=8, verbose=0)
        assert prediction.shape == (15, 1)

    def test_predictions_that_are_no_real_numbers(self) -> None:
        class Kinds(keras.Model):
            def call(self, x: Any) -> Any:
                wide = tf.cast(x, tf.float64)
                return {"text": tf.strings.as_string(x), "half": tf.complex(x, -x), "whole": tf.complex(wide, -wide)}

        x = np.random.default_rng(0).normal(size=(15, 2)).astype("float32")
        with strategy().scope():
            model = Kinds()
        found = model.predict(x, batch_size=8, verbose=0)
        for name, wanted in Kinds()(x).items():
            np.testing.assert_array_equal(found[name], wanted.numpy())

    def test_reduce_and_gather(self) -> None:
        def replica() -> tf.Tensor:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.fill([int(index) + 1], float(index))

        values = strategy().run(replica)
        assert strategy().gather(values, axis=0).numpy().tolist() == [0.0, 1.0, 1.0]
        assert float(strategy().reduce("SUM", values, axis=0)) == 2.0
        one = strategy().experimental_distribute_values_from_function(lambda c: tf.constant(c.replica_id_in_sync_group))
        assert int(strategy().reduce("SUM", one, axis=None)) == 1

    def test_no_step_leaves_threads_behind(self) -> None:
        x, y = regression()
        model = dense()

        def num_threads() -> int:
            return len(list(Path("/proc/self/task").iterdir()))

        model.fit(x, y, batch_size=6, epochs=4, verbose=0)
        before = num_threads()
        # 150 steps with two sums each.
        model.fit(x, y, batch_size=6, epochs=30, verbose=0)
        assert num_threads() < before + 30

    def test_a_learning_rate_is_a_number(self) -> None:
        assert float(dense().optimizer.learning_rate) == pytest.approx(0.05)

    @pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.parity_all)])
    def test_xla_inside_replicas(self, compiled: bool, caplog: pytest.LogCaptureFixture) -> None:
        """The numbers are those of one device, compiled and not; uncompiled parts are logged on one rank, once."""
        logger = "strategies._keras_hooks.compiled_steps"
        caplog.set_level("INFO", logger)
        x, y = (part[:-1] for part in regression())

        def num_lines() -> int:
            return sum(record.name == logger for record in caplog.records)

        def trained(jit: bool, where: Any, *layers: keras.layers.Layer, rows: int = 7) -> tuple[Any, list[Any]]:
            keras.utils.set_random_seed(5)
            with where:
                model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(8), keras.layers.Dense(1)])
                optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
                model.compile(optimizer, "mse", metrics=["mae"], jit_compile=jit)
            # The last batch has 1 row, the one before 7: rank 1 has no row in it.
            history = model.fit(x, y, batch_size=rows, epochs=2, verbose=0, shuffle=False).history
            return model, [*model.get_weights(), *history.values()]

        def outcome(jit: bool, where: Any) -> list[Any]:
            model, found = trained(jit, where)
            return [*found, model.evaluate(x, y, batch_size=7, verbose=0), model.predict(x, verbose=0)]

        ours = outcome(True, strategy().scope())
        assert all_ranks(num_lines()) == [0, 0]
        for one, other in zip(ours, outcome(compiled, contextlib.nullcontext()), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        with strategy().scope():
            normalization = keras.layers.BatchNormalization(synchronized=True)
        # Each size of a batch is compiled, which takes seconds.
        trained(True, strategy().scope(), normalization, rows=len(x))
        assert all_ranks(num_lines()) == [1, 0]

    def test_a_second_strategy(self) -> None:
        second = type(strategy())()
        with second.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x, y = regression()
        model.fit(x, y, verbose=0)
        assert all_ranks(digest(model)) == [digest(model)] * 2

    @pytest.mark.parametrize("compression", [pytest.param("fp16", marks=pytest.mark.parity_all), "bf16"])
    def test_gradients_rounded_on_their_way(self, compression: Any) -> None:
        if os.environ["SUITE_STRATEGY"] != "HorovodStrategy":
            with pytest.raises(TypeError, match="compression"):
                strategies.MultiWorkerMirroredStrategy(compression=compression)  # type: ignore[call-arg]
            return
        x, y = regression()
        exact = dense()
        with strategies.HorovodStrategy(compression=compression).scope():
            layers = [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
            rounded = keras.Sequential(layers)
            rounded.compile(keras.optimizers.SGD(0.05), "mse")
        rounded.set_weights(exact.get_weights())
        with strategy().scope():
            exact.compile(keras.optimizers.SGD(0.05), "mse")
        for model in (rounded, exact):
            model.fit(x, y, batch_size=10, epochs=2, verbose=0, shuffle=False)
        assert all_ranks(digest(rounded)) == [digest(rounded)] * 2
        difference = abs(digest(rounded) - digest(exact)) / digest(exact)
        assert 0 < difference < 1e-2

    def test_adasum_needs_mpi(self) -> None:
        if os.environ["SUITE_STRATEGY"] == "HorovodStrategy":
            with pytest.raises(ValueError, match="--mpi"):
                strategies.HorovodStrategy(reduction="adasum")


class TestGatheredRows:
    @pytest.mark.parametrize("count", [5, 1])
    @pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "eager"])
    def test_all_rows_and_the_sum_of_all_gradients(self, count: int, in_graph: bool) -> None:
        x = np.random.default_rng(0).standard_normal((count, 3)).astype("float32")
        others = {"int": np.arange(count)[:, None], "bool": x > 0, "half": tf.cast(x, tf.bfloat16)}

        def replica(x: tf.Tensor, others: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                rows = strategies.gather_rows(x)
                loss = (rank() + 1.0) * tf.reduce_sum(tf.square(tf.matmul(rows, rows, transpose_b=True)))
            slope = tape.gradient(loss, x)
            others = strategies.gather_rows(others)
            number = tf.cast(strategies.global_rows(x), tf.float32)
            sums = [number * tf.reduce_sum(tf.cast(each, tf.float32)) for each in others.values()]
            return rows[None], strategies.gather_rows(slope)[None], tf.stack(sums)[None]

        [batch] = strategy().experimental_distribute_dataset(tf.data.Dataset.from_tensors((x, others)))
        step = functools.partial(strategy().run, replica)
        rows, slopes, sums = (tf.function(step) if in_graph else step)(batch)
        whole = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(whole)
            loss = 3.0 * tf.reduce_sum(tf.square(tf.matmul(whole, whole, transpose_b=True)))
        expected = [count * float(tf.reduce_sum(tf.cast(each, tf.float32))) for each in others.values()]
        differences = [
            float(tf.reduce_max(tf.abs(one - other)))
            for one, other in ((rows, whole), (slopes, tape.gradient(loss, whole)), (sums, expected))
            if one.shape[0]
        ]
        assert max(all_ranks(max(differences, default=0.0))) <= 1e-4

    def test_strings_are_refused_on_both_ranks(self) -> None:
        def replica(x: tf.Tensor) -> Any:
            return strategies.gather_rows(tf.as_string(x))

        with pytest.raises(ValueError, match="strings"):
            strategy().run(replica, args=(tf.ones([2, 1]),))


class TestGatheredFunctions:
    def test_a_loss_and_a_metric_of_all_rows_are_those_of_one_device(self) -> None:
        """Batches may leave rank 1 without rows."""
        x, y = regression()

        def root(y_true: Any, y_pred: Any) -> Any:
            return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))

        def trained(scope: Any) -> np.ndarray:
            keras.utils.set_random_seed(5)
            with scope:
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(0.1), root, metrics=[root, "mae"])
            history = model.fit(x[:16], y[:16], batch_size=5, epochs=2, shuffle=False, verbose=0).history
            tested = model.evaluate(x[:16], y[:16], batch_size=3, verbose=0)
            return np.concatenate([np.ravel(each) for each in (*history.values(), tested, *model.get_weights())])

        with tf.distribute.get_strategy().scope():
            alone = trained(contextlib.nullcontext())
        difference = float(np.abs(trained(strategy().scope()) - alone).max())
        assert max(all_ranks(difference)) <= 1e-6
