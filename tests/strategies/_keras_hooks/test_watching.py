"""A training in one process notes its progress, rows and saves for those who watch it."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import monitoring
from strategies._keras_hooks import watching
from strategies.monitoring import this_process
from strategies.monitoring.store import MemoryStore

X, Y = np.ones((24, 2), "float32"), np.ones((24, 1), "float32")
SPEC = tf.TensorSpec((None, None))


@pytest.fixture(scope="module")
def model() -> keras.Model:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    return made


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> monitoring.Reporter:
    """The reporter of this process, without its thread."""
    made = monitoring.Reporter(0, 1, MemoryStore())
    monkeypatch.setattr(this_process, "_reporter", made)
    return made


def dataset(batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size).map(lambda x, y: (x, y)).prefetch(1)


def test_progress(model: keras.Model, reporter: monitoring.Reporter) -> None:
    progress, seen = reporter.progress, []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append((progress.epoch, progress.step, progress.total_steps)),
        on_epoch_end=lambda epoch, logs: seen.append((progress.epoch, progress.step, progress.total_steps)),
    )
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[note], validation_data=(X, Y))
    assert seen == [(1, 0, 0), (1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 0, 3), (2, 1, 4), (2, 2, 5), (2, 3, 6)]
    assert (progress.fraction, progress.is_training, progress.epochs, progress.steps_per_epoch) == (1.0, False, 2, 3)
    model.fit(X, Y, batch_size=12, verbose=0)
    assert (progress.total_steps, progress.steps_per_epoch) == (8, 2)


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_rows_of_a_batch(model: keras.Model, reporter: monitoring.Reporter, kind: str) -> None:
    data = (X, Y) if kind == "arrays" else (dataset(8),)
    # The batches of a validation are others.
    model.fit(*data, batch_size=8 if kind == "arrays" else None, shuffle=False, verbose=0, validation_data=dataset(4))
    assert (reporter.progress.units_per_step, reporter.progress.unit) == (8, "rows")


def test_rows_that_are_not_known(model: keras.Model, reporter: monitoring.Reporter) -> None:
    generated = tf.data.Dataset.from_generator(lambda: [(X, Y)] * 2, output_signature=(SPEC, SPEC))
    model.fit(generated, verbose=0, shuffle=False, steps_per_epoch=2)
    assert reporter.progress.units_per_step is None


def test_units_of_throughput(model: keras.Model, reporter: monitoring.Reporter) -> None:
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[keras_ext.Throughput(8 * 128, "tokens")])
    assert (reporter.progress.units_per_step, reporter.progress.unit) == (1024.0, "tokens")


@pytest.mark.parametrize("sharded", [False, True])
def test_saves(model: keras.Model, reporter: monitoring.Reporter, tmp_path: Path, sharded: bool) -> None:
    assert reporter.report(0.0).checkpoint == ""
    checkpoints = keras_ext.Checkpoints(tmp_path, steps_per_epoch=3, sharded=sharded)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[checkpoints])
    report = reporter.report(0.0)
    assert report.checkpoint.startswith(str(tmp_path / "step-000000003"))
    assert report.checkpoint_step == 3
    model.save(tmp_path / "model.keras")
    assert reporter.report(0.0).checkpoint == str(tmp_path / "model.keras")


def test_executions_that_do_not_divide_the_epoch(reporter: monitoring.Reporter) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert (reporter.progress.total_steps, reporter.progress.fraction) == (6, 1.0)


def test_a_save_at_the_end_of_a_batch(model: keras.Model, reporter: monitoring.Reporter, tmp_path: Path) -> None:
    saved: list[int | None] = []

    def save(batch: int, logs: object) -> None:
        model.save_weights(tmp_path / "saved.weights.h5")
        saved.append(reporter.report(0.0).checkpoint_step)

    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=save)])
    assert saved == [1, 2, 3]


def test_a_save_that_is_complete_steps_later(reporter: monitoring.Reporter) -> None:
    reporter.progress.note_step(6)
    note_save = watching.begin_save("run/6")
    reporter.progress.note_step(12)
    assert reporter.report(0.0).checkpoint == ""
    note_save()
    assert (reporter.report(0.0).checkpoint, reporter.report(0.0).checkpoint_step) == ("run/6", 6)


def test_nothing_is_noted_if_nobody_watches(model: keras.Model) -> None:
    assert monitoring.reporter() is None
    model.fit(X, Y, batch_size=8, verbose=0)
