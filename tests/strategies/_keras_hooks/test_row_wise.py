"""Models that are known to compute each row of their output from one row of their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest

from strategies._keras_hooks.row_wise import is_row_wise

L = keras.layers


def compiled(*layers: Any, loss: Any = "mse") -> keras.Model:
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    model.compile("sgd", loss)
    return model


def functional(operation: Callable[[Any], Any], *layers: Any) -> keras.Model:
    inputs = keras.Input((4, 4, 1))
    outputs = L.Dense(1)(operation(L.Flatten()(inputs)))
    for layer in layers:
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


class Own(keras.layers.Dense):
    """A user's class, whose `call` may do anything."""


class OwnLoss(keras.losses.MeanSquaredError):
    """Leaves out the rows that are better than the mean."""

    def call(self, y: Any, predicted: Any) -> Any:
        losses = super().call(y, predicted)
        return losses * keras.ops.cast(losses > keras.ops.mean(losses), losses.dtype)


def centred(x: Any) -> Any:
    return x - keras.ops.mean(x, axis=0, keepdims=True)


def replaced(part: Any) -> Any:
    """Returns the layer or loss with a method of its own on this one object."""
    part.call = lambda *args: centred(args[-1])
    return part


def called_in_training() -> keras.Model:
    inner = keras.Sequential([keras.Input((16,)), L.BatchNormalization()])
    return functional(lambda x: inner(x, training=True))


def own_loss(y: Any, predicted: Any) -> Any:
    return keras.ops.mean((y - predicted) ** 2, axis=-1)


@pytest.mark.parametrize(
    ("make", "in_training", "otherwise"),
    [
        (
            lambda: compiled(L.Conv2D(2, 3), L.MaxPooling2D(), L.Flatten(), L.Dense(2, kernel_regularizer="l2")),
            True,
            True,
        ),
        (lambda: compiled(compiled(L.LayerNormalization()), L.Flatten()), True, True),
        (lambda: compiled(L.Dense(1), loss=keras.losses.Huber(reduction="sum")), True, True),
        (lambda: compiled(L.Dense(1), loss=keras.losses.binary_crossentropy), True, True),
        (lambda: functional(lambda x: x), True, True),
        (lambda: compiled(L.BatchNormalization()), False, True),
        (lambda: compiled(compiled(L.Dropout(0.5))), False, True),
        (lambda: compiled(Own(1)), False, False),
        (lambda: compiled(L.Lambda(lambda x: x)), False, False),
        (lambda: compiled(L.Dense(1, activity_regularizer="l2")), False, False),
        (lambda: functional(lambda x: x - keras.ops.mean(x, axis=0)), False, False),
        (lambda: compiled(L.Dense(1), loss=own_loss), False, False),
        (lambda: compiled(L.Dense(1, activation=centred)), False, False),
        (lambda: compiled(L.Conv2D(2, 3, activation=centred)), False, False),
        (lambda: compiled(L.Activation(centred)), False, False),
        (lambda: compiled(L.Dense(1, activation=L.BatchNormalization())), False, False),
        (lambda: compiled(L.Dense(2, activation="softmax"), L.Activation("gelu"), L.ReLU()), True, True),
        (lambda: compiled(replaced(L.Dense(1))), False, False),
        (lambda: compiled(L.Dense(1, dtype="float8_from_float32")), False, False),
        (lambda: functional(lambda x: L.BatchNormalization()(x, training=True)), False, False),
        (called_in_training, False, False),
        (lambda: functional(lambda x: L.Concatenate(axis=-1)([x, x])), True, True),
        (lambda: functional(lambda x: L.Concatenate(axis=-2)([x, x])), False, False),
        (lambda: functional(lambda x: x, L.Reshape(()), L.Activation("softmax")), False, False),
        (lambda: compiled(L.Rescaling(0.5, offset=[-1.0])), True, True),
        (lambda: compiled(L.Dense(1), loss=OwnLoss()), False, False),
        (lambda: compiled(L.Dense(1), loss=replaced(keras.losses.MeanSquaredError())), False, False),
        (lambda: compiled(L.Dense(2), loss=keras.losses.CategoricalCrossentropy(axis=0)), False, False),
        (lambda: compiled(L.Dense(1), loss="dice"), False, False),
        (lambda: compiled(L.Dense(1), loss=keras.losses.Circle()), False, False),
        (lambda: compiled(L.Dense(1), loss=keras.losses.MeanSquaredError(reduction=None)), False, False),
    ],
)
def test_knows(make: Callable[[], keras.Model], in_training: bool, otherwise: bool) -> None:
    model = make()
    assert is_row_wise(model, training=True) is in_training
    assert is_row_wise(model, training=False) is otherwise


def test_models_of_own_classes_are_not_known() -> None:
    class Subclass(keras.Sequential):
        """A user's class, whose `call` may do anything."""

    assert not is_row_wise(Subclass([keras.Input((2,)), L.Dense(1)]), training=False)
