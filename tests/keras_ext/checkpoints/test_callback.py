"""A run that is stopped and resumed from its checkpoints has the numbers of an uninterrupted run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import convert

_ROWS, _BATCH, _EPOCHS = 70, 8, 3
_STEPS = -(-_ROWS // _BATCH)


class StoppedError(Exception):
    """Simulates a kill."""


class StopsAt(keras.callbacks.Callback):
    """Raises after `steps` steps, counted over all calls of `fit`."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise StoppedError


def _strategy(num_devices: int) -> Any:
    if num_devices == 0:
        return tf.distribute.get_strategy()
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])


def _model(units: int = 16, optimizer: str = "adam", metrics: tuple[str, ...] = ("accuracy",)) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(optimizer, "binary_crossentropy", metrics=list(metrics))
    return model


def _batches(epoch: int, step: int) -> tf.data.Dataset:
    random = np.random.default_rng(epoch)
    x = random.standard_normal((_ROWS, 6)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, (x[:, :1] > 0).astype("float32"))).batch(_BATCH)
    return dataset.skip(step)


def _run(folder: Path, num_devices: int, every_steps: int | None, stop: int | None = None) -> Any:
    with _strategy(num_devices).scope():
        model = _model()
    checkpoints = keras_ext.Checkpoints(folder, _STEPS, every_steps=every_steps)
    at = checkpoints.restore(model)
    callbacks = [*([] if stop is None else [StopsAt(stop)]), checkpoints]
    for epoch in range(at.epoch, _EPOCHS):
        step = at.step if epoch == at.epoch else 0
        batches = _batches(epoch, step)
        model.fit(batches, initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks, verbose=0, shuffle=False)
    return model, checkpoints.history


@pytest.mark.parametrize("num_devices", [0, 2])
def test_goes_on_as_if_nothing_had_happened(num_devices: int, tmp_path: Path) -> None:
    whole, history = _run(tmp_path / "whole", num_devices, 4)
    folder = tmp_path / "stopped often"
    for stop in (6, 11):
        with pytest.raises(StoppedError):
            _run(folder, num_devices, 4, stop)
    resumed, resumed_history = _run(folder, num_devices, 4)
    # Sums that replicas share are restored in equal parts, which round differently.
    for name, values in history.items():
        np.testing.assert_allclose(resumed_history[name], values, rtol=0 if num_devices == 0 else 1e-6)
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_number_of_devices_goes_on(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        _run(tmp_path, 0, 4, _STEPS + 5)
    _, history = _run(tmp_path, 2, 4)
    assert [len(values) for values in history.values()] == [_EPOCHS] * 2


def test_what_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    _run(tmp_path, 0, None)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split(".", 1)[1] for name in names] == ["json", "weights.h5"] * 2
    # Weights without their marker file, a truncated marker, truncated weights.
    (tmp_path / "step-000000099.weights.h5").write_bytes(b"")
    (tmp_path / "step-000000098.json").write_text("{")
    weights = tmp_path / names[3]
    weights.write_bytes(weights.read_bytes()[:100])
    assert keras_ext.Checkpoints(tmp_path, _STEPS).restore(_model()) == keras_ext.TrainingPosition(_EPOCHS - 1)


class StopsTraining(keras.callbacks.Callback):
    """Makes `fit` stop after a step of its first epoch."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.stop_training = self.model.stop_training or batch == 5


def test_an_epoch_that_a_callback_stopped_is_gone_on_with(tmp_path: Path) -> None:
    model = _model()
    checkpoints = keras_ext.Checkpoints(tmp_path, _STEPS, every_steps=4)
    model.fit(_batches(0, 0), callbacks=[StopsTraining(), checkpoints], verbose=0, shuffle=False)
    assert checkpoints.history == {}
    again = keras_ext.Checkpoints(tmp_path, _STEPS)
    assert again.restore(_model()) == keras_ext.TrainingPosition(0, 4)


def test_the_converter_takes_the_newest_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = tmp_path / "checkpoints", tmp_path / "plain.weights.h5"
    model, _ = _run(folder, 0, None)
    assert convert.main([str(folder), str(target)]) == 0
    again = _model()
    again.optimizer.build(again.trainable_variables)
    again.load_weights(target)
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    newest = sorted(folder.glob("*.json"))[-1]
    newest.with_suffix(".adapters.npz").touch()
    assert convert.main([str(folder), str(target)]) == 1
    assert "Restore the checkpoint into the model" in capsys.readouterr().err


def test_what_another_run_left_does_not_come_first(tmp_path: Path) -> None:
    _run(tmp_path, 0, None)
    model = _model()
    checkpoints = keras_ext.Checkpoints(tmp_path, _STEPS, num_kept=1)
    # Started from the beginning, without `restore`.
    model.fit(_batches(0, 0), callbacks=[checkpoints], verbose=0, shuffle=False)
    assert keras_ext.Checkpoints(tmp_path, _STEPS).restore(_model()) == keras_ext.TrainingPosition(1)


def test_when_none_can_be_read_nothing_starts_over(tmp_path: Path) -> None:
    (tmp_path / "step-000000004.json").write_text("{")
    with pytest.raises(ValueError, match="None of the 1 checkpoints in"):
        keras_ext.Checkpoints(tmp_path, _STEPS).restore(_model())


def test_nothing_there_is_the_start(tmp_path: Path) -> None:
    assert keras_ext.Checkpoints(tmp_path / "not there", 5).restore(_model()) == keras_ext.TrainingPosition()


def test_refuses_what_is_of_another_run(tmp_path: Path) -> None:
    _run(tmp_path, 0, None)
    with pytest.raises(ValueError, match=r"epochs of 9 steps.*Received: steps_per_epoch=4"):
        keras_ext.Checkpoints(tmp_path, 4).restore(_model())
    with pytest.raises(ValueError, match="is of another model"):
        keras_ext.Checkpoints(tmp_path, _STEPS).restore(_model(units=8))
    with pytest.raises(ValueError, match="is of another optimizer"):
        keras_ext.Checkpoints(tmp_path, _STEPS).restore(_model(optimizer="sgd"))
    with pytest.raises(ValueError, match="every_steps=0"):
        keras_ext.Checkpoints(tmp_path, 4, every_steps=0)


def test_metrics_of_another_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        _run(tmp_path, 0, 4, 5)
    state = json.loads((tmp_path / "step-000000004.json").read_text())
    assert (state["epoch"], state["step"]) == (0, 4)
    model = _model(metrics=())
    checkpoints = keras_ext.Checkpoints(tmp_path, _STEPS)
    checkpoints.restore(model)
    with pytest.raises(ValueError, match="numbers of metrics"):
        model.fit(_batches(0, 4), epochs=1, callbacks=[checkpoints], verbose=0, shuffle=False)


def test_an_epoch_with_more_steps_than_are_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        _run(tmp_path, 0, 4, 6)
    model, checkpoints = _model(), keras_ext.Checkpoints(tmp_path, _STEPS)
    at = checkpoints.restore(model)
    assert at == keras_ext.TrainingPosition(0, 4)
    before = model.get_weights()
    known = {"callbacks": [checkpoints], "initial_epoch": at.epoch, "verbose": 0, "shuffle": False}
    message = rf"after step 4 of epoch 1. First give fit the other {_STEPS - 4} steps.*steps_per_epoch={_STEPS}"
    with pytest.raises(ValueError, match=message):
        model.fit(_batches(0, 0), **known)
    np.testing.assert_equal(model.get_weights(), before)
    # Of unknown length: refused at the first step that is too many.
    endless = tf.data.Dataset.from_generator(lambda: iter(_batches(0, 0)), output_signature=_batches(0, 0).element_spec)
    with pytest.raises(ValueError, match=message):
        model.fit(endless, **known)
    assert int(model.optimizer.iterations) == _STEPS
    with pytest.raises(ValueError, match=r"epochs of the length.*Received: 3 or more steps in epoch 1, and steps_per_"):
        _model().fit(_batches(0, 0).take(3), verbose=0, shuffle=False, callbacks=[keras_ext.Checkpoints(tmp_path, 2)])
