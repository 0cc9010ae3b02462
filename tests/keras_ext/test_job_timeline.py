"""`JobTimeline` in one process; with several in `tests/strategies/tracing/test_recording.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from keras_ext import JobTimeline
from strategies.tracing.events import COLLECTIVES, COMPUTING, INPUT, STEPS
from strategies.tracing.job_trace import JobTrace
from tests.strategies.tracing.checks import names_on, read_valid

X = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
Y = X[:, :2] * X[:, 2:4]
DEVICES = ["CPU:0", "CPU:1"]


def layers() -> list[Any]:
    return [keras.Input((8,)), *(keras.layers.Dense(16, "relu") for _ in range(2)), keras.layers.Dense(2)]


def trained(
    strategy: tf.distribute.Strategy, callbacks: list[Any], *, num_microbatches: int = 0, **options: Any
) -> tuple[Any, keras.Model]:
    """Trains eight steps in two epochs; returns the logs and the model."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(layers())
        if num_microbatches:
            schedule = options.pop("schedule", "1f1b")
            model = keras_ext.PipelineModel(
                layers(), num_stages=2, partition="uniform", num_microbatches=num_microbatches, schedule=schedule
            )
        model.compile("adam", "mse", **options)
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return history.history, model


def recorded(path: Path, strategy: tf.distribute.Strategy, first_step: int = 3, **options: Any) -> JobTrace:
    """Returns the trace of three steps, after checks of its file and of weights and logs."""
    timeline = JobTimeline(path, first_step=first_step, num_steps=3, verbose=0)
    logs, model = trained(strategy, [timeline], **options)
    plain_logs, plain = trained(strategy, [], **options)
    assert logs == plain_logs
    for one, other in zip(
        [*model.weights, *model.optimizer.variables], [*plain.weights, *plain.optimizer.variables], strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    read_valid(path, num_ranks=1)
    assert timeline.trace is not None
    assert not timeline.trace.records[0].notes
    return timeline.trace


@pytest.mark.parametrize("shard", [None, "weights"])
def test_two_devices(tmp_path: Path, shard: Any) -> None:
    trace = recorded(tmp_path / "timeline.json", strategies.MirroredStrategy(DEVICES, shard=shard))
    assert names_on(trace, STEPS) == ["step 3", "step 4", "step 5"]
    assert len(names_on(trace, INPUT)) >= 3
    assert {"forward", "backward", "update"} <= set(names_on(trace, COMPUTING))
    expected = {"all_gather", "reduce_scatter"} if shard else {"all_reduce"}
    assert expected <= set(names_on(trace, COLLECTIVES))
    assert names_on(trace, f"replica 1, {COMPUTING}")
    assert trace.records[0].devices == tuple(DEVICES)


@pytest.mark.parametrize(
    ("schedule", "num_microbatches", "kinds"), [("1f1b", 2, "FB"), ("1f1b", 16, "FB"), ("zb_h1", 2, "FIW")]
)
def test_passes_of_a_pipeline(tmp_path: Path, schedule: str, num_microbatches: int, kinds: str) -> None:
    """In line with few micro-batches, as calls of functions with many."""
    strategy = strategies.MirroredStrategy(DEVICES, mesh={"pipe": 2})
    path = tmp_path / "timeline.json"
    trace = recorded(path, strategy, num_microbatches=num_microbatches, schedule=schedule)
    for stage in range(2):
        expected = [f"{stage}{kind}{i}" for kind in kinds for i in range(num_microbatches)]
        assert sorted(names_on(trace, f"stage {stage}")) == sorted(expected * 3)


def test_executions_of_several_steps(tmp_path: Path) -> None:
    strategy = strategies.MirroredStrategy(DEVICES)
    trace = recorded(tmp_path / "timeline.json", strategy, first_step=4, steps_per_execution=2)
    assert names_on(trace, STEPS) == ["steps 4 to 5", "steps 6 to 7"]
    assert [line.split()[:3] for line in str(trace).splitlines()[1:]] == [["rank", "0", "4"]]


def test_without_a_strategy_and_until_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = JobTimeline(tmp_path / "timeline.json", first_step=6, num_steps=100)
    trained(tf.distribute.get_strategy(), [timeline])
    assert timeline.trace is not None
    assert names_on(timeline.trace, STEPS) == ["step 6", "step 7"]
    assert str(timeline.trace) in capsys.readouterr().out


def test_a_second_profile_is_not_started(tmp_path: Path) -> None:
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        timeline = JobTimeline(tmp_path / "timeline.json", first_step=2, num_steps=2)
        trained(strategies.MirroredStrategy(DEVICES), [timeline])
    finally:
        tf.profiler.experimental.stop()
    assert timeline.trace is not None
    assert names_on(timeline.trace, STEPS) == ["step 2", "step 3"]
    assert "Rank 0: only steps were recorded, since TensorFlow's profiler did not start" in str(timeline.trace)


def test_an_error_in_fit_ends_the_profile(tmp_path: Path) -> None:
    """A program may keep the callback, and its error, and go on."""

    def fail(batch: int, logs: Any) -> None:
        if batch == 3:
            raise OSError("no disk")

    timeline = JobTimeline(tmp_path / "timeline.json", first_step=2, num_steps=5)
    failing = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(OSError, match="no disk") as raised:
        trained(strategies.MirroredStrategy(DEVICES), [timeline, failing])
    tf.profiler.experimental.start(str(tmp_path / "other"))
    tf.profiler.experimental.stop(save=False)
    assert raised.value.args == ("no disk",)
    assert timeline.trace is None


def test_fit_may_be_called_again(tmp_path: Path) -> None:
    timeline = JobTimeline(tmp_path / "timeline.json", first_step=2, num_steps=1, verbose=0)
    for _ in range(2):
        trained(tf.distribute.get_strategy(), [timeline])
        assert timeline.trace is not None
        assert names_on(timeline.trace, STEPS) == ["step 2"]


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    begun = list[int]()
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    for path in (tmp_path / "file" / "timeline.json", tmp_path):
        with pytest.raises(ValueError, match=r"cannot write its file.*Received: path="):
            trained(strategies.MirroredStrategy(DEVICES), [JobTimeline(path), note])
    assert not begun


def test_a_training_that_ends_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tf.distribute.get_strategy(), [JobTimeline(tmp_path / "timeline.json", first_step=8)])
    [said] = [record.getMessage() for record in caplog.records if record.name == "keras_ext.job_timeline"]
    assert said.startswith("JobTimeline recorded nothing: the training ended after 8 steps, before first_step=8.")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"first_step": -1}, {"first_step": 1.5}, {"num_steps": 0}, {"num_steps": 101}])
def test_arguments_out_of_range(wrong: Any) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=rf"Received: {name}={value}"):
        JobTimeline("timeline.json", **wrong)
