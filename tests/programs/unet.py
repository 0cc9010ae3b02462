"""Image segmentation with a U-Net, from a `PyDataset` that loads pictures batch by batch.

Changed for comparison: BatchNormalization is synchronized, and SGD trains, as Adam would divide by the gradients of
biases before it, which are rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.programs.fitting import fit
from tests.strategies.parity.harness import Case, Logs, Model

L = keras.layers
IMG_SIZE, NUM_CLASSES, BATCH_SIZE = (8, 8), 3, 8


class OxfordPets(keras.utils.PyDataset):
    """Pictures and masks of the animals with these numbers."""

    def __init__(self, batch_size: int, numbers: range, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.numbers = numbers

    def __len__(self) -> int:
        return -(-len(self.numbers) // self.batch_size)

    def __getitem__(self, idx: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = self.numbers[idx * self.batch_size : (idx + 1) * self.batch_size]
        pictures = [np.random.default_rng(number).uniform(size=(*IMG_SIZE, 3)) for number in numbers]
        x = np.stack(pictures).astype("float32")
        return x, (x.sum(-1, keepdims=True) * NUM_CLASSES / 3).astype("uint8")


def get_model() -> Model:
    inputs = keras.Input(shape=(*IMG_SIZE, 3))
    x = L.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = L.Activation("relu")(L.BatchNormalization(synchronized=True)(x))
    previous_block_activation = x
    for filters in (6,):
        x = L.SeparableConv2D(filters, 3, padding="same")(L.Activation("relu")(x))
        x = L.BatchNormalization(synchronized=True)(x)
        x = L.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = L.Conv2D(filters, 1, strides=2, padding="same")(previous_block_activation)
        previous_block_activation = x = L.add([x, residual])
    for filters in (6, 4):
        x = L.Conv2DTranspose(filters, 3, padding="same")(L.Activation("relu")(x))
        x = L.UpSampling2D(2)(L.BatchNormalization(synchronized=True)(x))
        residual = L.Conv2D(filters, 1, padding="same")(L.UpSampling2D(2)(previous_block_activation))
        previous_block_activation = x = L.add([x, residual])
    outputs = L.Conv2D(NUM_CLASSES, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


def make(place: Callable[[Model], Model] = lambda model: model) -> Model:
    model = place(get_model())
    model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.5), loss="sparse_categorical_crossentropy")
    return model


def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    train_gen, val_gen = OxfordPets(BATCH_SIZE, range(19)), OxfordPets(BATCH_SIZE, range(19, 24))
    logs = fit(model, train_gen, epochs=2, validation_data=val_gen, shuffle=True)
    return logs | {"predicted": model.predict(val_gen, verbose=0)}


CASE = Case("U-Net from a PyDataset", make, run)
