"""Parity of the forms of models, losses and training steps."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.strategies.parity.cases_data import classifier, functional, named_data
from tests.strategies.parity.harness import (
    BATCH_SIZE,
    NUM_ROWS,
    Case,
    Logs,
    Model,
    features,
    fit_arrays,
    labels,
    targets,
    vectors,
)


@keras.saving.register_keras_serializable("parity")
class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.head = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        hidden = self.hidden(x)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(hidden)))
        return self.head(hidden)


class ComputeLossStep(Subclassed):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics} | {"last": loss}


class LossObjectStep(Subclassed):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="squared")
        self.squared = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.squared(y, self(x, training=True))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.tracker.update_state(loss)
        return {"squared": self.tracker.result(), "loss": loss}


class VectorLossStep(Subclassed):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            per_row = keras.losses.mean_squared_error(y, self(x, training=True))
        self.optimizer.apply(tape.gradient(per_row, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(per_row)
        return {"loss": self._loss_tracker.result()}


class OwnComputeLoss(Subclassed):
    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        own = 0.3 * keras.ops.mean(keras.ops.abs(y - y_pred))
        return super().compute_loss(x, y, y_pred, *args, **kwargs) + own


class OwnComputeLossAndStep(OwnComputeLoss, ComputeLossStep):
    pass


def regressor(kind: type = Subclassed, loss: Any = "mse", metrics: Any = ("mae",)) -> Model:
    model = kind()
    model.compile(keras.optimizers.SGD(0.02, momentum=0.5), loss, metrics=list(metrics) or None)
    return model


regression = fit_arrays(vectors(), targets())
fit_only = fit_arrays(vectors(), targets(), predict=False)


def sequences() -> np.ndarray:
    tokens = np.random.default_rng(5).integers(1, 11, (NUM_ROWS, 7))
    lengths = np.random.default_rng(6).integers(1, 8, NUM_ROWS)
    return np.where(np.arange(7) < lengths[:, None], tokens, 0).astype("int32")


def masked(reduction: str) -> Model:
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            keras.layers.Embedding(11, 4, mask_zero=True),
            # Masks pass through this layer as through a loop, which takes many times as long to trace.
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.Dense(11),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.SGD(0.05 if reduction == "sum" else 0.5), loss, metrics=["accuracy"])
    return model


def weighted_mean_loss() -> Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def loop_model() -> Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=0.1)
    return model


def custom_loop(scaled_by_keras: bool) -> Any:
    """Returns TensorFlow's tutorial loop: the loss over the global batch size, summed over replicas."""

    def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
        strategy = strategy or tf.distribute.get_strategy()
        dataset = tf.data.Dataset.from_tensor_slices((vectors(), targets())).batch(BATCH_SIZE)
        with strategy.scope():
            mean = keras.losses.MeanSquaredError()
            per_row = keras.losses.MeanSquaredError(reduction=None)

        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                if scaled_by_keras:
                    loss = mean(y, y_pred)
                else:
                    loss = tf.nn.compute_average_loss(per_row(y, y_pred), global_batch_size=BATCH_SIZE)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def global_step(x: Any, y: Any) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

        losses = [
            float(global_step(x, y)) for _ in range(2) for x, y in strategy.experimental_distribute_dataset(dataset)
        ]
        return {"loss": losses}

    return run


def ragged_rows(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Fits a pipeline whose batches have any number of rows, in any order."""
    sizes = [5, 1, 9, 2, 3, 25]
    ends = np.cumsum(sizes)
    dataset = tf.data.Dataset.from_generator(
        lambda: ((vectors()[e - n : e], labels()[e - n : e]) for n, e in zip(sizes, ends, strict=True)),
        output_signature=(tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int32)),
    )
    # The length is declared: otherwise Keras warns at the end of an epoch that it ran out of data.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(sizes)))
    logs: Logs = model.fit(dataset, epochs=2, verbose=0, shuffle=False).history
    return logs


def eager_functional() -> Model:
    model = functional()
    model.run_eagerly = True
    return model


def image_model() -> Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.LayerNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


CASES = [
    Case(
        "Sequential, Conv2D, LayerNormalization",
        image_model,
        fit_arrays(features(NUM_ROWS, 8, 8, 2), labels()),
    ),
    Case(
        "Functional, several losses and outputs, run_eagerly",
        eager_functional,
        fit_arrays(*named_data(), epochs=1),
    ),
    Case("subclassed, built lazily, add_loss, regularizer", regressor, regression),
    Case("custom train_step with compute_loss", lambda: regressor(ComputeLossStep), regression),
    Case("custom train_step with a keras.losses object", lambda: regressor(LossObjectStep, None, ()), fit_only),
    Case("custom train_step with a loss per row", lambda: regressor(VectorLossStep, None, ()), fit_only),
    Case("overridden compute_loss", lambda: regressor(OwnComputeLoss), regression),
    Case("overridden compute_loss, custom train_step", lambda: regressor(OwnComputeLossAndStep), regression),
    Case(
        "loss with reduction='sum'",
        lambda: regressor(loss=keras.losses.MeanSquaredError(reduction="sum")),
        regression,
    ),
    Case(
        "loss with reduction='mean_with_sample_weight'",
        weighted_mean_loss,
        fit_arrays(vectors(), targets(), sample_weight=np.linspace(0, 3, NUM_ROWS, dtype="float32")),
    ),
    *(
        Case(f"masked sequences, reduction={r!r}", functools.partial(masked, r), fit_arrays(sequences(), sequences()))
        for r in ("sum_over_batch_size", "sum", "mean_with_sample_weight")
    ),
    Case("custom loop, loss over the global batch", loop_model, custom_loop(scaled_by_keras=False)),
    Case("custom loop, keras.losses object", loop_model, custom_loop(scaled_by_keras=True)),
    Case("batches of changing size", classifier, ragged_rows),
]
