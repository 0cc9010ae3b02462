"""What holds across processes beyond parity: run by `test_suites` in two processes at once, never collected.

The environment names the strategy and a folder that both processes see. Assertions look at what both ranks have: what
one of them finds, the other finds, too, and neither waits for one that has failed.
"""

from __future__ import annotations

import functools
import logging
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
from strategies._keras_hooks import callbacks as hooked
from strategies._keras_hooks.input_watch import InputWatch

# Keras says so of every dataset of unknown length, with or without us.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

FOLDER = Path(os.environ.get("SUITE_FOLDER", "."))
Policy = tf.data.experimental.AutoShardPolicy


@functools.cache
def strategy() -> Any:
    return getattr(strategies, os.environ["SUITE_STRATEGY"])()


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    strategy()


def crossing() -> Any:
    return strategy().extended.crossing


def rank() -> int:
    return int(crossing().rank)


def all_ranks(value: Any) -> list[Any]:
    """What each rank has; numbers only."""
    return list(crossing().gather(tf.convert_to_tensor([value])).numpy().tolist())


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    """A folder of this test, the same on both ranks."""
    folder = FOLDER / request.node.name
    folder.mkdir(parents=True, exist_ok=True)
    crossing().barrier()
    return folder


class Rows(keras.Model):
    """Counts rows: its loss is the sum of its inputs over their number, and its one weight does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.seen = keras.metrics.Sum(name="seen")
        self.total = keras.metrics.Sum(name="total")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        self.seen.update_state(tf.ones_like(x))
        self.total.update_state(x)
        return {"seen": self.seen.result(), "total": self.total.result(), "loss": self._loss_tracker.result()}


def counter(**kwargs: Any) -> Rows:
    with strategy().scope():
        model = Rows()
        model.compile(keras.optimizers.SGD(0.0), "mse", **kwargs)
    return model


def numbers(count: int, first: int = 0) -> tf.data.Dataset:
    """`first`, `first + 1`, ... as rows of a regression whose answer is 0."""
    x = np.arange(first, first + count, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, np.zeros_like(x)))


def with_policy(dataset: tf.data.Dataset, policy: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def fit(dataset: Any, **kwargs: Any) -> dict[str, list[float]]:
    history = counter().fit(dataset, verbose=0, shuffle=False, **kwargs).history
    seen = [float(value) for name in sorted(history) for value in history[name]]
    first, second = all_ranks(seen)
    assert first == second
    return {name: [float(value) for value in values] for name, values in history.items()}


def records(shared: Path, counts: list[int]) -> list[str]:
    """TFRecord files with that many numbers each, made by rank 0: 0, 1, ... in all."""
    paths = [str(shared / f"{i}.tfrecord") for i in range(len(counts))]
    if rank() == 0:
        value = 0
        for path, count in zip(paths, counts, strict=True):
            with tf.io.TFRecordWriter(path) as writer:
                for _ in range(count):
                    writer.write(np.float32(value).tobytes())
                    value += 1
    crossing().barrier()
    return paths


def read(paths: list[str]) -> tf.data.Dataset:
    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.reshape(tf.io.decode_raw(record, tf.float32), [1])
        return x, tf.zeros([1])

    return tf.data.TFRecordDataset(paths).map(parse)


class TestDatasets:
    def test_row_by_row_each_example_once(self) -> None:
        logs = fit(numbers(21).batch(4), epochs=2)
        assert logs["seen"] == [21.0, 21.0]
        assert logs["total"] == [210.0, 210.0]

    def test_auto_shard_by_data_is_row_by_row(self) -> None:
        assert fit(with_policy(numbers(21).batch(4), Policy.DATA))["total"] == [210.0]

    @pytest.mark.parametrize("counts", [[5, 7, 3, 6], [21, 0], [1, 20]])
    def test_auto_shard_by_file_each_example_once(self, shared: Path, counts: list[int]) -> None:
        logs = fit(with_policy(read(records(shared, counts)).batch(4), Policy.FILE), epochs=2)
        assert logs["seen"] == [21.0, 21.0]
        assert logs["total"] == [210.0, 210.0]

    def test_by_file_the_mean_counts_every_row_alike(self, shared: Path) -> None:
        logs = fit(with_policy(read(records(shared, [3, 2])).batch(8), Policy.FILE))
        assert logs["loss"] == pytest.approx([np.mean(np.arange(5.0) ** 2)], rel=1e-6)

    def test_unknown_length(self, shared: Path) -> None:
        assert fit(read(records(shared, [9, 4])).batch(4), epochs=2)["total"] == [78.0, 78.0]

    @pytest.mark.parametrize("steps_per_execution", [1, 3])
    @pytest.mark.parametrize("counts", [(8, 8), (13, 5), (0, 6), (6, 0)])
    def test_its_own_dataset_of_any_length(self, counts: tuple[int, int], steps_per_execution: int) -> None:
        mine = with_policy(numbers(counts[rank()], first=100 * rank()).batch(3), Policy.OFF)
        model = counter(steps_per_execution=steps_per_execution)
        history = model.fit(mine, epochs=2, verbose=0, shuffle=False).history
        total = sum(range(counts[0])) + sum(range(100, 100 + counts[1]))
        assert history["seen"] == [sum(counts)] * 2
        assert history["total"] == [total] * 2

    def test_from_a_function_with_an_input_context(self) -> None:
        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            assert (context.num_input_pipelines, context.input_pipeline_id) == (2, rank())
            shard = numbers(11).shard(context.num_input_pipelines, context.input_pipeline_id)
            return shard.batch(context.get_per_replica_batch_size(4))

        logs = fit(strategy().distribute_datasets_from_function(make))
        assert logs["total"] == [55.0]

    def test_steps_per_epoch_of_an_infinite_dataset(self) -> None:
        logs = fit(numbers(8).repeat().batch(4), steps_per_epoch=3, epochs=2)
        assert logs["seen"] == [12.0, 12.0]

    def test_lengths_that_differ_row_by_row_end_with_the_shortest(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "strategies"):
            logs = fit(numbers(8 if rank() else 16).batch(4))
        assert logs["seen"] == [8.0]
        assert "[4, 2]" in caplog.text

    def test_the_plan_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "strategies"):
            fit(numbers(8).batch(4))
        said = [record for record in caplog.records if "Sharing the dataset out" in record.message]
        assert len(said) == (1 if rank() == 0 else 0)

    @pytest.mark.parametrize("known", [True, False])
    def test_each_process_maps_its_own_rows_only(self, known: bool, caplog: pytest.LogCaptureFixture) -> None:
        seen: list[float] = []

        def decode(x: np.ndarray) -> np.ndarray:
            seen.append(float(x[0]))
            return x + 1

        def row(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.ensure_shape(tf.numpy_function(decode, [x], tf.float32), [1]), y

        rows = numbers(21) if known else numbers(21).filter(lambda x, y: True)
        with caplog.at_level(logging.INFO, "strategies"):
            logs = fit(rows.map(row, num_parallel_calls=2).batch(6).prefetch(1), epochs=2)
        assert logs["total"] == [231.0, 231.0]
        assert logs["loss"] == pytest.approx([np.mean(np.arange(1.0, 22.0) ** 2)] * 2, rel=1e-6)
        # Of the last batch, of three rows, rank 0 has two.
        mine = [*range(6 * rank() // 2, 3 + 6 * rank() // 2)]
        expected = [6 * k + i for k in range(3) for i in mine] + [[18, 19], [20]][rank()]
        assert sorted(seen) == sorted([*expected, *expected])
        if rank() == 0:
            assert "maps its own rows" in caplog.text
            assert ("assert_cardinality" in caplog.text) != known

    def test_fewer_rows_than_processes(self) -> None:
        """Rank 1 maps the one row of the last batch, too, and counts it for nothing."""
        plain = numbers(5).map(lambda x, y: (x + 1, y)).batch(2)
        assert fit(plain)["total"] == [15.0]

    def test_shuffles_without_a_seed_are_alike(self) -> None:
        assert fit(numbers(64).shuffle(64).batch(8), epochs=3)["total"] == [2016.0] * 3
        x = np.arange(64, dtype="float32")[:, None]
        history = counter().fit(x, 0 * x, batch_size=8, epochs=2, shuffle=True, verbose=0).history
        assert history["total"] == [2016.0] * 2

    def test_a_generator_that_can_be_read_once(self) -> None:
        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for begin in range(0, 20, 5):
                x = np.arange(begin, begin + 5, dtype="float32")[:, None]
                yield x, 0 * x

        assert fit(batches())["total"] == [190.0]


class TestReadingAhead:
    @pytest.mark.parametrize("known", [True, False])
    def test_it_changes_nothing(self, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """CPU devices are taken for GPUs."""
        x, y = regression()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
        mine = data if known else with_policy(data.take(3) if rank() else data, Policy.OFF)
        results = []
        for ahead in (True, False):
            monkeypatch.setattr(type(strategy().extended), "computes_on_gpus", ahead)
            model = dense()
            logs = model.fit(mine, validation_data=data, epochs=2, verbose=0, shuffle=False).history
            results.append([digest(model), *(value for name in sorted(logs) for value in logs[name])])
        assert results[0] == results[1]
        assert all_ranks(results[0][0]) == [results[0][0]] * 2

    def test_one_process_without_gpus_keeps_the_others_from_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where processes agree at every element, all must draw alike."""
        monkeypatch.setattr(type(strategy().extended), "computes_on_gpus", rank() == 0)
        logs = fit(with_policy(numbers(9 + 4 * rank()).batch(3), Policy.OFF), epochs=2)
        assert logs["seen"] == [22.0, 22.0]


def regression() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((30, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def dense(seed: int = 5, **settings: Any) -> keras.Model:
    """A model with a built optimizer."""
    keras.utils.set_random_seed(seed)
    with strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05, **settings), "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    return model


def files_in(folder: Path) -> list[str]:
    crossing().barrier()
    return sorted(path.name for path in folder.iterdir())


def digest(model: keras.Model) -> float:
    return float(sum(np.abs(np.asarray(weight)).sum() for weight in model.get_weights()))


class TestFiles:
    @pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5", "a folder"])
    def test_one_writes_and_all_can_read(self, shared: Path, name: str) -> None:
        x, y = regression()
        model = dense()
        model.fit(x, y, verbose=0, shuffle=False)
        path = shared / name
        if name.endswith(".weights.h5"):
            model.save_weights(path)
        elif name == "a folder":
            model.save(path, zipped=False)
        else:
            model.save(path)
        assert files_in(shared) == [name]
        if name.endswith(".weights.h5"):
            again = dense(seed=6)
            again.load_weights(path)
        else:
            with strategy().scope():
                # The old format cannot find the loss by its name.
                again = keras.models.load_model(path, compile=name != "model.h5")
        assert all_ranks(digest(again)) == [digest(model)] * 2
        if rank() == 0 and name == "model.keras":
            plain = keras.models.load_model(path)
            assert np.array_equal(plain.get_weights()[0], model.get_weights()[0])

    def test_rank_0_alone_may_save(self, shared: Path) -> None:
        model = dense()
        if rank() == 0:
            model.save(shared / "model.keras")
        assert files_in(shared) == ["model.keras"]
        model.load_weights(shared / "model.keras")

    def test_gathered_gradients_are_saved_whole(self, shared: Path) -> None:
        x, y = regression()
        model = dense(gradient_accumulation_steps=4)
        model.fit(x, y, batch_size=10, verbose=0, shuffle=False)
        model.save(shared / "model.keras")
        with strategy().scope():
            again = keras.models.load_model(shared / "model.keras")
        for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)
        again.fit(x, y, batch_size=10, verbose=0, shuffle=False)
        model.fit(x, y, batch_size=10, verbose=0, shuffle=False)
        np.testing.assert_allclose(digest(again), digest(model), rtol=1e-6)

    def test_export(self, shared: Path) -> None:
        model = dense()
        model.export(shared / "exported", verbose=False)
        assert files_in(shared) == ["exported"]


class TestCallbacks:
    def test_rank_0_writes(self, shared: Path) -> None:
        x, y = regression()
        callbacks = [
            keras.callbacks.CSVLogger(str(shared / "log.csv")),
            keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), save_best_only=True, monitor="loss"),
            keras.callbacks.TensorBoard(str(shared / "board")),
            keras.callbacks.BackupAndRestore(str(shared / "backup"), delete_checkpoint=False),
        ]
        dense().fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
        assert files_in(shared) == ["1.keras", "2.keras", "backup", "board", "log.csv"]
        assert len((shared / "log.csv").read_text().splitlines()) == 3
        assert len(list((shared / "board").rglob("events*"))) == 1

    def test_others_are_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        x, y = regression()
        model = dense()
        model.fit(x, y, verbose=2, callbacks=[keras.callbacks.EarlyStopping("loss", verbose=1)])
        model.evaluate(x, y, verbose=2)
        model.predict(x, verbose=2)
        out, _ = capfd.readouterr()
        assert bool(out.strip()) == (rank() == 0)

    def test_a_run_goes_on_from_its_backup(self, shared: Path) -> None:
        x, y = regression()

        class Dies(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 2:
                    raise KeyboardInterrupt

        def backup() -> keras.callbacks.Callback:
            return keras.callbacks.BackupAndRestore(str(shared / "backup"))

        settings = {"epochs": 4, "verbose": 0, "shuffle": False, "batch_size": 10}
        whole = dense()
        whole.fit(x, y, **settings)
        with pytest.raises(KeyboardInterrupt):
            dense().fit(x, y, callbacks=[backup(), Dies()], **settings)
        resumed = dense(seed=9)
        history = resumed.fit(x, y, callbacks=[backup()], **settings)
        assert history.epoch == [2, 3]
        assert all_ranks(digest(resumed)) == [digest(resumed)] * 2
        np.testing.assert_allclose(digest(resumed), digest(whole), rtol=1e-6)
        assert files_in(shared) == []

    def test_all_stop_with_the_one_that_stops(self) -> None:
        class Stops(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = epoch == 1 and rank() == 1

        x, y = regression()
        assert dense().fit(x, y, epochs=5, verbose=0, callbacks=[Stops()]).epoch == [0, 1]

    def test_deciding_by_logs_is_deciding_alike(self) -> None:
        x, y = regression()
        callbacks = [
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5),
            keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5, restore_best_weights=True),
        ]
        model = dense()
        epochs = len(model.fit(x, y, epochs=9, verbose=0, callbacks=callbacks).epoch)
        assert all_ranks(float(epochs)) == [float(epochs)] * 2
        assert all_ranks(float(model.optimizer.learning_rate)) == [float(model.optimizer.learning_rate)] * 2
        assert all_ranks(digest(model)) == [digest(model)] * 2


class TestWaiting:
    @pytest.mark.parametrize("policy", [Policy.AUTO, Policy.OFF])
    def test_for_input(self, policy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(hooked, "InputWatch", functools.partial(InputWatch, share=0.05, seconds=0.1, steps=2))

        def slow() -> Iterator[Any]:
            for _ in range(6):
                time.sleep(0.15)
                yield np.ones([4, 1], "float32"), np.zeros([4, 1], "float32")

        spec = (tf.TensorSpec([4, 1]), tf.TensorSpec([4, 1]))
        dataset = tf.data.Dataset.from_generator(slow, output_signature=spec)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(6))
        before = strategies.seconds_waited(strategy()).input
        begin = time.perf_counter()
        # In the first epoch batches come while the step is traced.
        counter().fit(with_policy(dataset, policy), epochs=2, verbose=0, shuffle=False)
        elapsed = time.perf_counter() - begin
        waited = strategies.seconds_waited(strategy()).input - before
        assert all(0.3 < each < limit for each, limit in zip(all_ranks(waited), all_ranks(elapsed), strict=True))
        lines = [record for record in caplog.records if "Input is the bottleneck" in record.getMessage()]
        assert all_ranks(len(lines)) == [1, 0]

    def test_for_others(self) -> None:
        """Rank 1 comes late to every sum; that it is seen changes no number."""

        class Late(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                if isinstance(x, keras.KerasTensor):
                    return x

                def sleep(value: Any) -> Any:
                    time.sleep(0.05 * rank())
                    return value

                @tf.custom_gradient
                def identity(value: tf.Tensor) -> Any:
                    return tf.ensure_shape(tf.numpy_function(sleep, [value], tf.float32), value.shape), lambda d: d

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
        strategies.watch_communication(strategy())
        for one, other in zip(weights(), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
        waited = strategies.seconds_waited(strategy()).communication
        assert waited is not None
        first, second = all_ranks(waited)
        # Ten steps, two for each sum; what rank 1 slept for the last, rank 0 waits for.
        assert first > 5 * 0.05 * 0.8
        assert second < first


class TestPrograms:
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
        # 150 steps, of two sums each.
        model.fit(x, y, batch_size=6, epochs=30, verbose=0)
        assert num_threads() < before + 30

    def test_a_learning_rate_is_a_number(self) -> None:
        assert float(dense().optimizer.learning_rate) == pytest.approx(0.05)

    def test_a_second_strategy(self) -> None:
        second = type(strategy())()
        with second.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x, y = regression()
        model.fit(x, y, verbose=0)
        assert all_ranks(digest(model)) == [digest(model)] * 2

    @pytest.mark.parametrize("compression", ["fp16", "bf16"])
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
