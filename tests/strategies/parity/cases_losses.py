"""Parity of losses that layers add or a step computes itself, and of tables that are looked up by positions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tests.releases import is_there
from tests.strategies.parity.cases_optimizers import EVERY
from tests.strategies.parity.harness import (
    BATCH_SIZE,
    NUM_ROWS,
    Case,
    Logs,
    Model,
    fit_arrays,
    targets,
    vectors,
)


@keras.saving.register_keras_serializable("parity")
class AddedLosses(keras.layers.Layer):
    """Adds a loss of each kind: of a Keras object, a sum over rows, a mean, one per count, a penalty of weights."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")

    def call(self, x: Any) -> Any:
        hidden = self.dense(x)
        self.add_loss(0.3 * keras.losses.MeanSquaredError()(x[:, :5], hidden))
        self.add_loss(0.02 * keras.losses.MeanAbsoluteError(reduction="sum")(x[:, :5], hidden))
        self.add_loss(0.01 * ops.sum(ops.square(hidden)))
        self.add_loss(0.1 * ops.mean(ops.abs(hidden)))
        self.add_loss(0.1 * ops.sum(hidden) / ops.cast(ops.shape(hidden)[0], "float32"))
        return hidden


def with_added_losses() -> Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            AddedLosses(),
            keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def loop_with_added_losses(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Runs a custom loop that leaves the total to the model; a layer of it has added losses of Keras' objects."""
    strategy = strategy or tf.distribute.get_strategy()
    dataset = tf.data.Dataset.from_tensor_slices((vectors(), targets())).batch(BATCH_SIZE)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def global_step(x: Any, y: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    return {"loss": [float(global_step(x, y)) for x, y in strategy.experimental_distribute_dataset(dataset)]}


class OwnStep(keras.Model):
    """Computes its loss itself, and logs it, as published programs do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.head = keras.layers.Dense(1)
        self.total_tracker = keras.metrics.Mean(name="total")
        self.part_tracker = keras.metrics.Mean(name="part")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_tracker, self.part_tracker]

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))

    def losses_of(self, x: Any, y: Any) -> tuple[Any, Any]:
        hidden = self.hidden(x)
        error = ops.mean(ops.sum(ops.square(y - self.head(hidden)), axis=1))
        part = tf.reduce_sum(tf.square(hidden)) / tf.cast(tf.shape(hidden)[0], tf.float32)
        compared = keras.losses.MeanAbsoluteError()(y, self.head(hidden))
        return error + 0.1 * part + compared + sum(self.hidden.losses), part

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            total, part = self.losses_of(x, y)
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total_tracker.update_state(total)
        self.part_tracker.update_state(part)
        return {"loss": self.total_tracker.result(), "part": self.part_tracker.result(), "squares": ops.sum(y * y)}


class SummingStep(OwnStep):
    """Like `OwnStep`, with sums over rows."""

    def losses_of(self, x: Any, y: Any) -> tuple[Any, Any]:
        part = ops.sum(ops.square(self.hidden(x)))
        return tf.reduce_sum(tf.square(y - self(x))) + 0.1 * part, part


class PenaltyOfGradients(OwnStep):
    """Like `OwnStep`, with a gradient inside the loss, as critics of adversarial networks have."""

    def losses_of(self, x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            scores = self(x)
        slopes = tape.gradient(scores, [x])[0]
        penalty = ops.mean(ops.square(ops.sqrt(ops.sum(ops.square(slopes), axis=1) + 1e-6) - 1.0))
        return ops.mean(scores) - ops.mean(y * scores) + penalty, penalty


def own_step(kind: type[OwnStep], rate: float, **kwargs: Any) -> Callable[[], Model]:
    def make() -> Model:
        model = kind()
        model.compile(keras.optimizers.SGD(rate), **kwargs)
        return model

    return make


def tokens() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 7, (NUM_ROWS, 5)).astype("int32")


@keras.saving.register_keras_serializable("parity")
class Positions(keras.layers.Layer):
    """Looks up tables: one by the batch, one by positions, one in several ways, one that is also used as a matrix."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tokens = keras.layers.Embedding(7, 4)
        self.positions = keras.layers.Embedding(5, 4)
        self.several = keras.layers.Embedding(9, 4)
        self.tied = keras.layers.Embedding(6, 4)

    def call(self, x: Any) -> Any:
        places = ops.arange(ops.shape(x)[1])
        everywhere = ops.broadcast_to(places, ops.shape(x))
        several = self.several(x) + self.several(places + 2) + self.several(ops.flip(x, 1)) + self.several(everywhere)
        found = self.tokens(x) + self.positions(places) + several + self.tied(places)
        return ops.matmul(found, ops.transpose(self.tied.embeddings))


def with_positions(optimizer: Callable[[], Any]) -> Model:
    x = keras.Input((5,), dtype="int32")
    hidden = keras.layers.Dense(4, activation="tanh")(Positions()(x))
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))
    model.compile(optimizer(), "mse")
    return model


#: With `centered=True`, Keras' RMSprop fails on a table that is looked up by one index twice, on one device too.
FOR_TABLES: dict[str, Callable[..., Any]] = {**EVERY, "RMSprop": lambda: keras.optimizers.RMSprop(1e-3, momentum=0.5)}


def under_every_optimizer(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    logs: dict[str, Any] = {}
    start = model.get_weights()
    for name, optimizer in FOR_TABLES.items():
        if not is_there(name):
            continue
        model.set_weights(start)
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            model.compile(optimizer(), "mse")
            # Otherwise ScheduleFreeAdamW would copy the weights into its slots at every step, see `cases_optimizers`.
            model.optimizer.build(model.trainable_variables)
        model.fit(tokens(), targets(), batch_size=BATCH_SIZE, verbose=0, shuffle=False)
        logs |= {f"{name}_{i}": weight for i, weight in enumerate(model.get_weights())}
    return logs


fit_only = fit_arrays(vectors(), targets(), predict=False)
EVERY_OPTIMIZER = "table looked up by positions, every optimizer"
CASES = [
    Case("losses that layers add, of each kind", with_added_losses, fit_arrays(vectors(), targets())),
    Case("losses that layers add, of each kind, custom loop", with_added_losses, loop_with_added_losses),
    Case("losses averaged by hand in train_step", own_step(OwnStep, 0.05), fit_only),
    Case("losses averaged by hand in train_step, run_eagerly", own_step(OwnStep, 0.05, run_eagerly=True), fit_only),
    Case("losses summed by hand in train_step", own_step(SummingStep, 0.005), fit_only),
    Case("gradient inside the loss of train_step", own_step(PenaltyOfGradients, 0.05), fit_only),
    Case(
        "table looked up by positions and by rows, Adam",
        lambda: with_positions(lambda: keras.optimizers.Adam(0.02)),
        fit_arrays(tokens(), targets(), predict=False),
    ),
    Case(
        "table looked up by positions and by rows, Adagrad, clipnorm, run_eagerly",
        lambda: eager(with_positions(lambda: keras.optimizers.Adagrad(0.05, clipnorm=0.1))),
        fit_arrays(tokens(), targets(), predict=False, epochs=1),
    ),
    Case(EVERY_OPTIMIZER, lambda: with_positions(keras.optimizers.SGD), under_every_optimizer),
]


def eager(model: Model) -> Model:
    model.run_eagerly = True
    return model
