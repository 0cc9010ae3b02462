"""The warm-up of the learning rate: the numbers of Horovod's schedule, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from keras_ext import LearningRateWarmup

FULL_RATE = 0.4

# Four steps per epoch, two epochs of warm-up: lr / n * (1 + (n - 1) * e / 2), where e is the number of epochs trained,
# this step included.
RATES = {
    2: [0.225, 0.25, 0.275, 0.3, 0.325, 0.35, 0.375, 0.4, 0.4, 0.4, 0.4, 0.4],
    4: [0.1375, 0.175, 0.2125, 0.25, 0.2875, 0.325, 0.3625, 0.4, 0.4, 0.4, 0.4, 0.4],
}


class Rates(keras.callbacks.Callback):
    """Records the learning rate of each execution."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(self.model.optimizer.learning_rate))


def make(num_replicas: int, optimizer: Callable[[], Any] | None = None, **settings: Any) -> keras.Model:
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    with strategies.MirroredStrategy(devices).scope():
        return compiled(optimizer, **settings)


def compiled(optimizer: Callable[[], Any] | None = None, **settings: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    # The gradient of the one weight is 1 at every step.
    made = optimizer() if optimizer else keras.optimizers.SGD(FULL_RATE)
    model.compile(made, lambda y, y_pred: y_pred, **settings)
    return model


def fit(model: keras.Model, *callbacks: Any, epochs: int = 3, **settings: Any) -> tuple[list[float], dict[str, Any]]:
    """Returns the rate of each execution, and the logs; four steps per epoch."""
    rates = Rates()
    x = np.ones((32, 1), "float32")
    history = model.fit(x, x, batch_size=8, epochs=epochs, verbose=0, callbacks=[*callbacks, rates], **settings)
    return rates.seen, history.history


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_every_step_has_its_rate(num_replicas: int) -> None:
    rates, logs = fit(make(num_replicas), LearningRateWarmup(2))
    np.testing.assert_allclose(rates, RATES[num_replicas], rtol=1e-6)
    np.testing.assert_allclose(logs["learning_rate"], RATES[num_replicas][3::4], rtol=1e-6)


def test_the_steps_are_made_with_these_rates() -> None:
    model = make(4)
    fit(model, LearningRateWarmup(2))
    np.testing.assert_allclose(model.get_weights()[0], [[-sum(RATES[4])]], rtol=1e-6)


def test_of_five_epochs_by_default() -> None:
    rates, _ = fit(make(2), LearningRateWarmup(), epochs=6)
    np.testing.assert_allclose(rates, [0.2 + 0.01 * min(step, 20) for step in range(1, 25)], rtol=1e-6)


@pytest.mark.parametrize("strategy", [True, False])
def test_on_one_device_nothing_changes(strategy: bool) -> None:
    model = make(1) if strategy else compiled()
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    rates, logs = fit(model, LearningRateWarmup(2), halve)
    np.testing.assert_allclose(rates, [0.2] * 4 + [0.1] * 4 + [0.05] * 4, rtol=1e-6)
    np.testing.assert_allclose(logs["learning_rate"], [0.2, 0.1, 0.05], rtol=1e-6)


def test_afterwards_others_set_the_rate() -> None:
    later = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.04 if epoch == 2 else rate)
    rates, _ = fit(make(2), LearningRateWarmup(2), later)
    np.testing.assert_allclose(rates, [*RATES[2][:8], *[0.04] * 4], rtol=1e-6)


@pytest.mark.parametrize(("steps", "expected"), [(2, [0, 2, 4, 6, 8, 10]), (3, [0, 3, 4, 7, 8, 11])])
def test_an_execution_has_the_rate_of_its_first_step(steps: int, expected: list[int]) -> None:
    rates, logs = fit(make(4, steps_per_execution=steps), LearningRateWarmup(2))
    np.testing.assert_allclose(rates, [RATES[4][step] for step in expected], rtol=1e-6)
    np.testing.assert_allclose(logs["learning_rate"][1:], [FULL_RATE] * 2, rtol=1e-6)


def velocity_sum(rates: list[float], corrected: bool, momentum: float = 0.9) -> float:
    """Returns the weight after steps of gradient 1 with these rates."""
    weight = velocity = 0.0
    for before, rate in zip([rates[0], *rates], rates, strict=False):
        velocity = momentum * velocity * (rate / before if corrected else 1.0) - rate
        weight += velocity
    return weight


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_momentum(corrected: bool, scaled: bool) -> None:
    def optimizer() -> Any:
        inner = keras.optimizers.SGD(FULL_RATE, momentum=0.9)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0) if scaled else inner

    model = make(2, optimizer)
    rates, _ = fit(model, LearningRateWarmup(2, momentum_correction=corrected))
    np.testing.assert_allclose(rates, RATES[2], rtol=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], [[velocity_sum(RATES[2], corrected)]], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.RMSprop, keras.optimizers.Lion])
def test_other_optimizers(optimizer: Any) -> None:
    settings = {"momentum": 0.5} if optimizer is keras.optimizers.RMSprop else {}
    rates, _ = fit(make(2, lambda: optimizer(FULL_RATE, **settings)), LearningRateWarmup(2))
    np.testing.assert_allclose(rates, RATES[2], rtol=1e-6)


def test_goes_on_where_an_earlier_run_ended() -> None:
    model, warmup = make(4), LearningRateWarmup(2)
    first, _ = fit(model, warmup, epochs=1)
    second, _ = fit(model, warmup, initial_epoch=1)
    np.testing.assert_allclose(first + second, RATES[4], rtol=1e-6)
    again = LearningRateWarmup(2, target_learning_rate=FULL_RATE)
    model.optimizer.learning_rate = 0.25
    np.testing.assert_allclose(fit(model, again, initial_epoch=1)[0], RATES[4][4:], rtol=1e-6)


def test_goes_on_from_a_backup(tmp_path: Any) -> None:
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        fit(make(4), backup(), LearningRateWarmup(2), Dies())
    np.testing.assert_allclose(fit(make(4), backup(), LearningRateWarmup(2))[0], RATES[4][4:], rtol=1e-6)


def test_says_when_it_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    fit(make(2), LearningRateWarmup(2, verbose=1))
    assert capsys.readouterr().out == "\nEpoch 2: the learning rate has warmed up to 0.4.\n"


def test_refuses_a_schedule() -> None:
    model = make(2, lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(FULL_RATE, 12)))
    with pytest.raises(ValueError, match=r"follows a schedule. Compile with a number"):
        fit(model, LearningRateWarmup(2))


def unending() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield np.ones((8, 1), "float32"), np.ones((8, 1), "float32")


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_refuses_data_of_unknown_length() -> None:
    spec = tf.TensorSpec((8, 1))
    dataset = tf.data.Dataset.from_generator(unending, output_signature=(spec, spec)).take(4)
    rates = Rates()
    model = make(2)
    with pytest.raises(ValueError, match=r"fit\(..., steps_per_epoch=...\). Received: steps_per_epoch=None"):
        model.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=[LearningRateWarmup(2)])
    model.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=[LearningRateWarmup(2, steps_per_epoch=4), rates])
    np.testing.assert_allclose(rates.seen, RATES[2], rtol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"warmup_epochs": 0}, {"warmup_epochs": 2.5}, {"steps_per_epoch": -1}, {"target_learning_rate": 0.0}],
)
def test_refuses_arguments_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be .* Received: {next(iter(settings))}="):
        LearningRateWarmup(**settings)
