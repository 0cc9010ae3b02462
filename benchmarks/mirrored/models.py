"""The trained models, and random images in memory to train them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

NUM_CLASSES = 10
BATCHES_IN_MEMORY = 8
PREFETCH_BATCHES = 2


@dataclass(frozen=True)
class Subject:
    """A model with its input shape and optimizer.

    Attributes:
        image_shape: shape of one input; for an image height, width and channels.
        make_model: makes the model, whose outputs are probabilities.
        make_optimizer: makes an optimizer that is usual for such a model.
    """

    image_shape: tuple[int, ...]
    make_model: Callable[[], keras.Model]
    make_optimizer: Callable[[], keras.Optimizer]


def _small_cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )


def _resnet50() -> keras.Model:
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=NUM_CLASSES)


def _adam() -> keras.Optimizer:
    return keras.optimizers.Adam(1e-3)


def _momentum() -> keras.Optimizer:
    return keras.optimizers.SGD(1e-2, momentum=0.9)


MODELS: Mapping[str, Subject] = {
    "small_cnn": Subject((28, 28, 1), _small_cnn, _adam),
    "resnet50": Subject((64, 64, 3), _resnet50, _momentum),
}


def compiled_model(subject: Subject, *, jit_compile: bool | str = "auto") -> keras.Model:
    """Returns the subject's model, ready for `fit`; `jit_compile` is passed to `compile`."""
    model = subject.make_model()
    model.compile(
        optimizer=subject.make_optimizer(),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    return model


def dataset(subject: Subject, batch_size: int, *, is_static: bool = False) -> tf.data.Dataset:
    """Returns an endless dataset of global batches of (images, labels).

    As in most programs, TensorFlow does not know the batch size statically, since a last batch could be smaller; unless
    `is_static`.
    """
    random = np.random.default_rng(0)
    num_images = batch_size * BATCHES_IN_MEMORY
    images = random.random((num_images, *subject.image_shape), dtype=np.float32)
    labels = random.integers(NUM_CLASSES, size=num_images, dtype=np.int32)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch_size, drop_remainder=is_static)
    return batches.repeat().prefetch(PREFETCH_BATCHES)
