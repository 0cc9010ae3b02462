"""Activations that may be applied to a piece of a tensor: the elementwise ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

_ELEMENTWISE = frozenset(
    {
        "celu",
        "elu",
        "exponential",
        "gelu",
        "hard_shrink",
        "hard_sigmoid",
        "hard_silu",
        "hard_tanh",
        "leaky_relu",
        "linear",
        "log_sigmoid",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "soft_shrink",
        "softplus",
        "softsign",
        "sparse_plus",
        "sparse_sigmoid",
        "squareplus",
        "tanh",
        "tanh_shrink",
        "threshold",
    }
)


def is_elementwise(activation: Callable[..., Any] | None) -> bool:
    """Returns True if `activation` is None or one of Keras' elementwise functions; False for all others."""
    if activation is None:
        return True
    name = getattr(activation, "__name__", "")
    return name in _ELEMENTWISE and getattr(keras.activations, name, None) is activation


def check_elementwise(activation: Callable[..., Any] | None, argument: str) -> None:
    """Refuses an activation that would need more than one piece.

    Raises:
        ValueError: `activation` is not one of Keras' elementwise functions; the message names `argument`.
    """
    if not is_elementwise(activation):
        raise ValueError(
            f"With {argument} the activation must be one of Keras' that map each number by itself, such as 'relu' or "
            f"'gelu'. Received: activation={activation!r}."
        )
