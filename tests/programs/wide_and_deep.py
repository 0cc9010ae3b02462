"""A wide and deep network on a CSV file: vocabularies, embeddings, statistics of numbers, inputs by name.

Changed for comparison: rows are shuffled with a seed, BatchNormalization is synchronized and SGD trains, as Adam would
divide by the gradients of biases before it, which are rounding; Dropout drops nothing.
"""

from __future__ import annotations

import pathlib
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model

L = keras.layers
NUMERIC_FEATURE_NAMES = ("elevation", "slope")
CATEGORICAL_FEATURES_WITH_VOCABULARY = {"soil": ["clay", "loam", "sand"], "area": ["east", "north", "south", "west"]}
NUM_CLASSES, BATCH_SIZE = 3, 8
CSV_HEADER = [*NUMERIC_FEATURE_NAMES, *CATEGORICAL_FEATURES_WITH_VOCABULARY, "cover"]


def table(num_rows: int, seed: int) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    columns: list[Any] = [rng.uniform(0, 3000, num_rows).round(2), rng.uniform(0, 60, num_rows).round(2)]
    columns += [rng.choice(words, num_rows) for words in CATEGORICAL_FEATURES_WITH_VOCABULARY.values()]
    return [list(row) for row in zip(*columns, rng.integers(0, NUM_CLASSES, num_rows), strict=True)]


def get_dataset_from_csv(path: pathlib.Path, shuffle: bool = False) -> tf.data.Dataset:
    dataset = tf.data.experimental.make_csv_dataset(
        str(path),
        batch_size=BATCH_SIZE,
        column_names=CSV_HEADER,
        column_defaults=[*([0.0] * len(NUMERIC_FEATURE_NAMES)), *(["NA"] * 2), 0],
        label_name="cover",
        num_epochs=1,
        header=True,
        shuffle=shuffle,
        shuffle_seed=3,
    )
    # An ordered dictionary would be matched with the model's inputs by position.
    return dataset.map(lambda features, label: (dict(features), label))


def create_model_inputs() -> dict[str, Any]:
    types = dict.fromkeys(NUMERIC_FEATURE_NAMES, "float32") | dict.fromkeys(
        CATEGORICAL_FEATURES_WITH_VOCABULARY, "string"
    )
    return {name: keras.Input(name=name, shape=(), dtype=dtype) for name, dtype in types.items()}


def encode_inputs(inputs: dict[str, Any], use_embedding: bool) -> Any:
    encoded_features = []
    for name, value in inputs.items():
        if name in CATEGORICAL_FEATURES_WITH_VOCABULARY:
            vocabulary = CATEGORICAL_FEATURES_WITH_VOCABULARY[name]
            lookup = L.StringLookup(
                vocabulary=vocabulary,
                mask_token=None,
                num_oov_indices=0,
                output_mode="int" if use_embedding else "multi_hot",
            )
            if use_embedding:
                encoded_features.append(L.Embedding(input_dim=len(vocabulary), output_dim=2)(lookup(value)))
            else:
                encoded_features.append(lookup(keras.ops.expand_dims(value, -1)))
        else:
            normalization = L.Normalization(axis=None)
            normalization.adapt(np.array([row[CSV_HEADER.index(name)] for row in table(19, 20)], "float32"))
            encoded_features.append(normalization(keras.ops.expand_dims(value, -1)))
    return L.concatenate(encoded_features)


def create_wide_and_deep_model() -> Model:
    inputs = create_model_inputs()
    wide = L.BatchNormalization(synchronized=True)(encode_inputs(inputs, use_embedding=False))
    deep = encode_inputs(inputs, use_embedding=True)
    for units in (6, 5):
        deep = L.BatchNormalization(synchronized=True)(L.Dense(units)(deep))
        deep = L.Dropout(0.0)(L.ReLU()(deep))
    outputs = L.Dense(units=NUM_CLASSES, activation="softmax")(L.concatenate([wide, deep]))
    return keras.Model(inputs=inputs, outputs=outputs)


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    model = place(create_wide_and_deep_model())
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.05, momentum=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Nobody knows the length of the data before their end.
        warnings.filterwarnings("ignore", "Your input ran out of data")
        paths = [pathlib.Path(folder, name) for name in ("train.csv", "test.csv")]
        for path, rows in zip(paths, (table(19, 20), table(10, 21)), strict=True):
            path.write_text("\n".join(",".join(map(str, row)) for row in [CSV_HEADER, *rows]) + "\n")
        logs = fit(model, get_dataset_from_csv(paths[0], shuffle=True), epochs=2)
        _, accuracy = model.evaluate(get_dataset_from_csv(paths[1]), verbose=0)
        predicted = model.predict(get_dataset_from_csv(paths[1]).map(lambda features, label: features), verbose=0)
    return logs | {"test_accuracy": accuracy, "predicted": predicted}


CASE = Case("wide and deep network from a CSV file", make, run)
