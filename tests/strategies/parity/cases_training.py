"""Parity of metrics that are not means, and of the ways to run training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.strategies.parity.cases_data import classifier, pipeline
from tests.strategies.parity.harness import (
    EPOCHS,
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


def binary(metrics: Callable[[], list[Any]]) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics())
        return model

    return make


def confusion() -> list[Any]:
    m = keras.metrics
    return [
        m.AUC(name="auc"),
        m.AUC(curve="PR", num_thresholds=50, name="pr"),
        m.Precision(name="precision"),
        m.Recall(name="recall"),
        m.F1Score(threshold=0.5, name="f1"),
        m.TruePositives(name="tp"),
        m.PrecisionAtRecall(0.5, name="par"),
        m.BinaryIoU(target_class_ids=[0, 1], name="iou"),
    ]


def regression_metrics() -> list[Any]:
    m = keras.metrics
    return [
        m.R2Score(name="r2"),
        m.RootMeanSquaredError(name="rmse"),
        m.LogCoshError(name="logcosh"),
        m.CosineSimilarity(name="cosine"),
    ]


def regressor() -> Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=regression_metrics())
    return model


def multi_class() -> Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    metrics = [
        keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou"),
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2"),
    ]
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=metrics)
    return model


def compiled_with(**kwargs: Any) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=0.1)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **kwargs)
        return model

    return make


def convolutional(norm: Callable[[], keras.Layer], **arguments: Any) -> Callable[[], Model]:
    """Returns a maker of a model for XLA."""

    def make() -> Model:
        layers = [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3),
            norm(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
        ]
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, **arguments), loss, metrics=["accuracy"], jit_compile=True)
        return model

    return make


def several_steps(model: Model, strategy: Any) -> Logs:
    logs: Logs = model.fit(pipeline(), epochs=EPOCHS, verbose=0, shuffle=False, validation_data=pipeline()).history
    return dict(logs) | {"prediction": model.predict(vectors(), batch_size=8, verbose=0)}


def half_precision(loss_scale: float) -> Callable[[], Model]:
    """Returns a maker of a float16 model whose scaled loss overflows on the first rows, on replica 0 only."""

    def make() -> Model:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2), initial_scale=loss_scale)
        model.compile(optimizer, "mse")
        return model

    return make


def overflow_on_first_rows(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    x, y = vectors()[:32].copy(), targets()[:32].copy()
    y[0] = 3e4
    logs: Logs = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    scales = [float(v) for v in model.optimizer.variables if "dynamic_scale" in v.path]
    assert scales[0] < 2.0**15, "the loss scale was to fall: no step overflowed"
    return {"scale": scales, "finite": [float(tf.math.is_finite(loss)) for loss in logs["loss"]]}


CASES = [
    Case(
        "AUC, Precision, Recall, F1 and other counts",
        binary(confusion),
        fit_arrays(vectors(), labels(2)[:, None]),
    ),
    Case("R2Score, RMSE, LogCoshError, CosineSimilarity", regressor, fit_arrays(vectors(), targets())),
    Case("MeanIoU, top-k accuracy", multi_class),
    Case("steps_per_execution=3", compiled_with(steps_per_execution=3), several_steps),
    Case("run_eagerly=True", compiled_with(run_eagerly=True), fit_arrays(vectors(), labels(), epochs=1)),
    Case("jit_compile='auto'", compiled_with(jit_compile="auto")),
    Case(
        "jit_compile=True, global_clipnorm, validation_data",
        compiled_with(jit_compile=True),
        fit_arrays(vectors(), labels(), validation_data=(vectors(), labels())),
    ),
    Case(
        "jit_compile=True, Conv2D, gradient_accumulation_steps",
        convolutional(keras.layers.LayerNormalization, gradient_accumulation_steps=2),
        fit_arrays(features(NUM_ROWS, 6, 6, 1), labels()),
    ),
    Case(
        "jit_compile=True, BatchNormalization(synchronized=True)",
        convolutional(lambda: keras.layers.BatchNormalization(synchronized=True)),
        fit_arrays(features(NUM_ROWS, 6, 6, 1), labels()),
    ),
    Case(
        "mixed_float16, overflow on one replica only",
        half_precision(2.0**15),
        overflow_on_first_rows,
        dtype_policy="mixed_float16",
        tolerance=2e-3,
    ),
    Case("mixed_float16", classifier, dtype_policy="mixed_float16", tolerance=2e-3),
    Case("mixed_bfloat16", classifier, dtype_policy="mixed_bfloat16", tolerance=1.6e-2),
]
