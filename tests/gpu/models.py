"""Models of the cases: a convolutional net, the language model of examples/gpt, stacks of dense layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_EXAMPLES = str(Path(__file__).parents[2] / "examples")


@dataclass(frozen=True)
class Problem:
    """A model, its loss, and the same few batches in every epoch."""

    build: Callable[[], Any]
    x: np.ndarray
    y: np.ndarray
    loss: Callable[[], Any]
    batch_size: int

    @property
    def num_steps(self) -> int:
        """The number of steps of an epoch."""
        return -(-len(self.x) // self.batch_size)

    def dataset(self) -> tf.data.Dataset:
        """Returns the batches; the last one is smaller if rows are left over."""
        # Without this, TensorFlow copies all rows to the first GPU, where they would count in every peak.
        with tf.device("CPU:0"):
            return tf.data.Dataset.from_tensor_slices((self.x, self.y)).batch(self.batch_size).prefetch(2)

    def compile_options(self) -> dict[str, Any]:
        """Returns SGD with momentum, and the loss: optimizers that divide by gradients' sizes magnify rounding."""
        return {"optimizer": keras.optimizers.SGD(1e-2, momentum=0.9), "loss": self.loss()}


def _labels() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(small: bool, num_steps: int = 4) -> Problem:
    """Returns ResNet50 on images of 224 x 224; if `small`, a net with the same kinds of layers."""
    side, classes, batch_size = (8, 4, 4) if small else (224, 1000, 32)

    def build() -> Any:
        if not small:
            return keras.applications.ResNet50(weights=None, classifier_activation=None)
        return _convolutional(side, filters=4, num_blocks=1, classes=classes)

    return _classification(build, batch_size * num_steps, side, classes, batch_size)


def normalized(small: bool) -> Problem:
    """Returns a few convolutions, fast to compile, with BatchNormalization, for which uneven batches are not padded."""
    side, filters, num_blocks, batch_size = (8, 4, 1, 4) if small else (64, 64, 4, 64)
    build = partial(_convolutional, side, filters, num_blocks, classes=4)
    # The last batch is uneven: one replica has one image more than the other.
    return _classification(build, 4 * batch_size + 3, side, 4, batch_size)


def _convolutional(side: int, filters: int, num_blocks: int, classes: int) -> Any:
    layers: list[Any] = [keras.Input((side, side, 3))]
    for _ in range(num_blocks):
        layers += [
            keras.layers.Conv2D(filters, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
        ]
    return keras.Sequential(
        [*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes, dtype="float32")]
    )


def _classification(build: Callable[[], Any], count: int, side: int, classes: int, batch_size: int) -> Problem:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, side, side, 3)).astype("float32")
    return Problem(build, x, rng.integers(0, classes, count), _labels, batch_size)


def language(small: bool, num_steps: int = 4, full: bool = False) -> Problem:
    """Returns the decoder of examples/gpt, with the size of GPT-2 except for the vocabulary if `full`."""
    if _EXAMPLES not in sys.path:
        sys.path.insert(0, _EXAMPLES)
    from gpt.model import Sizes, build_model

    if small:
        sizes, batch_size = Sizes(32, 8, 1, 2, 16), 4
    else:
        # The smaller one fits twice into a logical GPU: ours, and plain Keras'.
        sizes = Sizes(8192, 512, 12, 12, 768) if full else Sizes(8192, 256, 8, 8, 512)
        batch_size = 8
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, sizes.num_tokens, (batch_size * num_steps, sizes.sequence_length + 1)).astype("int32")
    return Problem(lambda: build_model(sizes), tokens[:, :-1], tokens[:, 1:], _labels, batch_size)


def dense(small: bool, num_layers: int = 4, left_over: int = 0) -> Problem:
    """Returns dense layers, named for plans and stages, and wide, so that activations take more than weights."""
    width, batch_size = (8, 8) if small else (1024, 8192)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4 * batch_size + left_over, width)).astype("float32")

    def build() -> Any:
        layers = [keras.layers.Dense(width, "tanh", name=f"dense_{index}") for index in range(num_layers)]
        return keras.Sequential([keras.Input((width,)), *layers])

    return Problem(build, x, np.tanh(x[:, ::-1]), lambda: "mse", batch_size)
