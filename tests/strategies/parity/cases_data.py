"""Parity of the forms of input data: arrays, pipelines, generators, nests, weights, odd batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.strategies.parity.harness import (
    BATCH_SIZE,
    EPOCHS,
    NUM_ROWS,
    Case,
    Logs,
    Model,
    fit_arrays,
    labels,
    targets,
    vectors,
)


def classifier() -> Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["sparse_categorical_crossentropy"],
    )
    return model


def functional() -> Model:
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([first, second]))
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(hidden),
        "size": keras.layers.Dense(1, name="size")(hidden),
    }
    model = keras.Model({"first": first, "second": second}, outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def two_inputs() -> Model:
    first, second = keras.Input((3,)), keras.Input((3,))
    hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([first, second]))
    model = keras.Model((first, second), keras.layers.Dense(3)(hidden))
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def named_data() -> tuple[Any, Any]:
    return {"first": vectors()[:, :3], "second": vectors()[:, 3:]}, {"kind": labels(), "size": targets()}


def pairs() -> tf.data.Dataset:
    data = ((vectors()[:, :3], vectors()[:, 3:]), labels())
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH_SIZE)


def fit_dataset(dataset: Any, **kwargs: Any) -> Any:
    def run(model: Model, strategy: Any) -> Logs:
        made = dataset() if callable(dataset) else dataset
        logs: Logs = model.fit(made, epochs=EPOCHS, verbose=0, shuffle=False, **kwargs).history
        return logs

    return run


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((vectors(), labels())).batch(BATCH_SIZE)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return -(-NUM_ROWS // BATCH_SIZE)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return vectors()[rows], labels()[rows]


def one_pass(epochs: int = EPOCHS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _ in range(epochs):
        dataset = Batches()
        for index in range(len(dataset)):
            yield dataset[index]


def on_batches(model: Model, strategy: Any) -> Logs:
    logs: dict[str, list[float]] = {}
    x, y = vectors(), labels()
    for begin in range(0, NUM_ROWS, 7):
        rows = slice(begin, begin + 7)
        weight = np.linspace(0.5, 1.5, len(y[rows]), dtype="float32")
        trained = model.train_on_batch(x[rows], y[rows], sample_weight=weight, return_dict=True)
        tested = model.test_on_batch(x[rows], y[rows], return_dict=True)
        for kind, batch in (("train", trained), ("test", tested)):
            for name, value in batch.items():
                logs.setdefault(f"{kind}_{name}", []).append(value)
    model.train_on_batch(x[:1], y[:1], class_weight={0: 1.0, 1: 2.0, 2: 3.0})
    return logs | {"prediction": model.predict_on_batch(x[:5]), "single": model.predict_on_batch(x[:1])}


def small_batches(batch_size: int) -> Any:
    return fit_arrays(vectors(), labels(), batch_size=batch_size, epochs=1)


CASES = [
    Case("arrays, a batch that does not divide, a last batch smaller than the replicas", classifier),
    Case("arrays, shuffled", classifier, fit_arrays(vectors(), labels(), shuffle=True)),
    Case("batches of 1 row", classifier, small_batches(1)),
    Case("batches of 3 rows", classifier, small_batches(3)),
    Case(
        "validation_data",
        classifier,
        fit_arrays(vectors(), labels(), validation_data=(vectors()[:9], labels()[:9])),
    ),
    Case("validation_split", classifier, fit_arrays(vectors(), labels(), validation_split=0.3)),
    Case(
        "class_weight",
        classifier,
        fit_arrays(vectors(), labels(), class_weight={0: 1.0, 1: 2.5, 2: 0.25}, predict=False),
    ),
    Case(
        "sample_weight",
        classifier,
        fit_arrays(vectors(), labels(), sample_weight=np.linspace(0, 2, NUM_ROWS, dtype="float32")),
    ),
    Case("tf.data", classifier, fit_dataset(pipeline, validation_data=pipeline())),
    Case(
        "tf.data, infinite, steps_per_epoch",
        classifier,
        fit_dataset(lambda: pipeline().repeat(), steps_per_epoch=5),
    ),
    Case("PyDataset", classifier, fit_dataset(Batches)),
    Case("one-pass generator", classifier, fit_dataset(one_pass, steps_per_epoch=4)),
    Case("dict of inputs and outputs", functional, fit_arrays(*named_data())),
    Case("list of inputs", two_inputs, fit_arrays([vectors()[:, :3], vectors()[:, 3:]], labels())),
    Case("tuple of inputs", two_inputs, fit_dataset(pairs, validation_data=pairs())),
    Case("train_on_batch, test_on_batch, predict_on_batch", classifier, on_batches),
]
