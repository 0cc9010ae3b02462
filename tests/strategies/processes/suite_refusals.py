"""Ranks with different settings: run by `test_suites` in two processes at once, never collected.

The last rank differs from the others in one thing. All of them are refused, before the first step, with an error that
names the difference; then the next case runs in the same processes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from tests.strategies.processes.ranks import all_ranks, rank, strategy

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
Y = X[:, :2].copy()
#: The time limit of each refusal.
LIMIT_SECONDS = 20.0


def is_other() -> bool:
    return rank() == strategy().world_size - 1


def model(
    optimizer: Callable[[], Any] = lambda: "sgd",
    layer: dict[str, Any] | None = None,
    rate: float = 0.5,
    **compile_with: Any,
) -> keras.Model:
    keras.utils.set_random_seed(3)
    with strategy().scope():
        made = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(2, **(layer or {})), keras.layers.Dropout(rate, name="dropped")]
        )
        made.compile(optimizer(), **{"loss": "mse", **compile_with})
    return made


def adam(**settings: Any) -> Callable[[], keras.Optimizer]:
    return lambda: keras.optimizers.Adam(**settings)


def sgd(**settings: Any) -> Callable[[], keras.Optimizer]:
    return lambda: keras.optimizers.SGD(**settings)


def batches(size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size).prefetch(1)


def decay(steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.CosineDecay(0.1, steps)


#: By name: the model's arguments on the last rank and on the others, and a pattern of the error.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    **{
        f"Adam {name}": ({"optimizer": adam(**{name: other})}, {"optimizer": adam()}, rf"optimizer Adam\({name}=")
        for name, other in {
            "beta_1": 0.8,
            "beta_2": 0.9,
            "epsilon": 1e-3,
            "amsgrad": True,
            "weight_decay": 0.1,
            "clipnorm": 1.0,
            "clipvalue": 1.0,
            "global_clipnorm": 1.0,
            "use_ema": True,
            "loss_scale_factor": 8.0,
            "gradient_accumulation_steps": 2,
        }.items()
    },
    "momentum": ({"optimizer": sgd(momentum=0.9)}, {"optimizer": sgd()}, r"optimizer SGD\(momentum=0.9"),
    "nesterov": (
        {"optimizer": sgd(momentum=0.9, nesterov=True)},
        {"optimizer": sgd(momentum=0.9)},
        r"optimizer SGD\(nesterov=True",
    ),
    "schedule": ({"optimizer": sgd(learning_rate=decay(9))}, {"optimizer": sgd(learning_rate=decay(8))}, "decay_steps"),
    "momentum of averages": (
        {"optimizer": adam(use_ema=True, ema_momentum=0.9)},
        {"optimizer": adam(use_ema=True)},
        r"optimizer Adam\(ema_momentum=0.9",
    ),
    "overwriting by averages": (
        {"optimizer": adam(use_ema=True, ema_overwrite_frequency=2)},
        {"optimizer": adam(use_ema=True)},
        r"optimizer Adam\(ema_overwrite_frequency=2",
    ),
    "optimizer": ({"optimizer": lambda: "rmsprop"}, {}, "optimizer RMSprop"),
    "loss": ({"loss": "mae"}, {}, "loss .*mae"),
    "metrics": ({"metrics": ["mae"]}, {}, "metrics .*mae"),
    "weighted metrics": ({"weighted_metrics": ["mse"]}, {}, "metrics .*mse"),
    "steps_per_execution": ({"steps_per_execution": 2}, {}, r"compile\(steps_per_execution=2\)"),
    "run_eagerly": ({"run_eagerly": True}, {}, r"compile\(run_eagerly=True\)"),
    "jit_compile": ({"jit_compile": True}, {"jit_compile": False}, r"compile\(jit_compile=True\)"),
    "activation": ({"layer": {"activation": "relu"}}, {}, r"layer dense\(activation='?relu"),
    "dtype policy": ({"layer": {"dtype": "mixed_bfloat16"}}, {}, r"layer dense\(dtype=mixed_bfloat16"),
    "frozen layer": ({"layer": {"trainable": False}}, {}, r"layer dense\(trainable=False"),
    "regularizer": ({"layer": {"kernel_regularizer": "l2"}}, {}, r"layer dense\(kernel_regularizer="),
    "constraint": ({"layer": {"bias_constraint": "non_neg"}}, {}, r"layer dense\(bias_constraint="),
    "name of a layer": ({"layer": {"name": "other"}}, {}, "layer other of class Dense"),
    "rate of dropout": ({"rate": 0.25}, {}, r"layer dropped\(rate=0.25"),
}

#: Models that are compared as others: all settings of an optimizer are compared alike.
LIKE_OTHERS = (
    *(f"Adam {name}" for name in ("beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay", "clipvalue")),
    *(f"Adam {name}" for name in ("global_clipnorm", "loss_scale_factor", "gradient_accumulation_steps")),
    *("nesterov", "momentum of averages", "overwriting by averages"),
)

#: By name: the arguments of `fit` on the last rank and on the others, and a pattern of the error.
ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "batch_size": ({"batch_size": 4}, {}, r"fit\(batch_size=4\)"),
    "epochs": ({"epochs": 2}, {}, r"fit\(epochs=2\)"),
    "initial_epoch": ({"epochs": 2, "initial_epoch": 1}, {"epochs": 2}, r"fit\(initial_epoch=1\)"),
    "steps_per_epoch": ({"steps_per_epoch": 2}, {}, r"fit\(steps_per_epoch=2\)"),
    "shuffle": ({"shuffle": True}, {}, r"fit\(shuffle=True\)"),
    "class_weight": ({"class_weight": {0: 2.0}}, {}, r"fit\(class_weight="),
    "number of rows": ({"x": X[:24], "y": Y[:24]}, {}, r"fit\(x=ndarray \(24, 6\) float32\)"),
    "dtype of rows": ({"x": X.astype("float64")}, {}, r"fit\(x=ndarray \(32, 6\) float64\)"),
    "weights of rows": ({"sample_weight": np.ones(32, "float32")}, {}, r"fit\(sample_weight=ndarray"),
    "validation": ({"validation_data": (X, Y)}, {}, r"fit\(validation_data="),
    "validation_split": ({"validation_split": 0.5}, {}, r"fit\(validation_split=0.5\)"),
    "batches of a dataset": (
        {"x": lambda: batches(4), "y": None, "batch_size": None},
        {"x": lambda: batches(8), "y": None, "batch_size": None},
        r"fit\(batch_size=4\)",
    ),
    "a dataset on one": (
        {"x": lambda: batches(8), "y": None, "batch_size": None},
        {},
        r"fit\(x=TensorSpec",
    ),
}


def refused(call: Callable[[], Any], names: str) -> None:
    """Fails unless all ranks refuse the call at once, with an error that matches `names`."""
    begin = time.monotonic()
    with pytest.raises(ValueError, match=rf"Received, where they differ: .*{names}"):
        call()
    assert max(all_ranks(time.monotonic() - begin)) < LIMIT_SECONDS


def fitted(trained: keras.Model, **arguments: Any) -> None:
    trained.fit(**{"x": X, "y": Y, "batch_size": 8, "shuffle": False, "verbose": 0, **arguments})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.parity_all] if name in LIKE_OTHERS else []) for name in MODELS]
)
def test_another_model(name: str) -> None:
    other, own, names = MODELS[name]
    made = model(**(other if is_other() else own))
    refused(lambda: fitted(made), names)


def test_other_arguments() -> None:
    made = model()
    before = made.get_weights()
    for other, own, names in ARGUMENTS.values():
        chosen = {name: value() if callable(value) else value for name, value in (other if is_other() else own).items()}
        refused(functools.partial(fitted, made, **chosen), names)
    for value, expected in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    # The model still trains after a refusal.
    fitted(made)


def test_another_call() -> None:
    made = model()
    refused(lambda: made.predict(X, verbose=0) if is_other() else fitted(made), r"predict\(")
    fitted(made)


def test_other_weights() -> None:
    made = model()
    if is_other():
        made.layers[0].bias.assign([1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"have different values of '.*bias'.* differ: rank 0: values with .* \| rank 1: values with"
    ):
        fitted(made)


def test_weights_that_come_apart() -> None:
    class Drift(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if is_other():
                self.model.layers[0].bias.assign_add([1e-7, 0.0])

    made = model(rate=0.0)
    with pytest.raises(
        ValueError, match=r"'.*bias', one of the weights .*, at the end of epoch 1\..*differ: rank 0: .* \| rank 1: "
    ):
        fitted(made, epochs=3, callbacks=[Drift()])


def test_weights_that_come_apart_within_an_epoch() -> None:
    class Drift(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if is_other() and batch == 1:
                self.model.layers[0].bias.assign_add([1e-7, 0.0])

    made = model(rate=0.0)
    check = keras_ext.WeightsComparison(every_steps=2)
    with pytest.raises(
        ValueError, match=r"'.*bias', one of the weights .*, after step 2 of epoch 1\..*differ: rank 0: .* \| rank 1: "
    ):
        fitted(made, batch_size=2, epochs=3, callbacks=[Drift(), check])


def test_there_are_forty() -> None:
    assert len(MODELS) + len(ARGUMENTS) >= 40


def test_updates_outside_of_strategy_run() -> None:
    """Every rank would train on its own rows."""
    made = model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(made(X) - Y))
    gradients = tape.gradient(loss, made.trainable_variables)
    with pytest.raises(ValueError, match=r"outside of strategy\.run, so that each process would train by its own"):
        made.optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))
