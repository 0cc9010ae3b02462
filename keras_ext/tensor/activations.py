"""Activations that may be applied to a piece of a tensor: the elementwise ones."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from strategies import layer_api

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


# Operations of Keras, besides these activations, that map each number of their inputs by itself.
_OPS = frozenset(
    {"Abs", "Add", "Cast", "Divide", "Exp", "Maximum", "Minimum", "Multiply", "Negative", "Power", "Sqrt"}
    | {"Square", "Subtract", "TrueDivide"}
    | {"".join(part.capitalize() for part in name.split("_")) for name in _ELEMENTWISE}
)


def is_elementwise(activation: Callable[..., Any] | None) -> bool:
    """Returns True if `activation` is None, one of Keras' elementwise functions, or a function that is found to be one.

    Functions of others, such as ``lambda x: keras.activations.gelu(x, approximate=True)``, are tried with numbers: the
    results of parts must be the parts of the result.
    """
    if activation is None:
        return True
    name = getattr(activation, "__name__", "")
    if getattr(keras.activations, name, None) is activation:
        return name in _ELEMENTWISE
    return isinstance(activation, types.FunctionType) and _is_found_elementwise(activation)


def is_elementwise_op(operation: Any) -> bool:
    """Returns True if an operation of Keras, which is no layer, maps each number of its inputs by itself."""
    is_of_keras = type(operation).__module__.startswith("keras.") and not isinstance(operation, keras.Layer)
    # An array may have a number for each unit.
    own = [value for name, value in vars(operation).items() if not name.startswith("_")]
    return is_of_keras and type(operation).__name__ in _OPS and all(map(is_single, own))


def is_single(value: Any) -> bool:
    """Returns True for an argument of an operation that is not an array, a tensor, or a collection of numbers."""
    return isinstance(value, (str, int, float, bool, type(None), np.generic))


@functools.lru_cache(maxsize=256)
def _is_found_elementwise(function: Callable[..., Any]) -> bool:
    numbers = 3 * np.random.default_rng(0).standard_normal((4, 6)).astype("float32")

    def found(values: np.ndarray) -> np.ndarray:
        result, reads_variables = layer_api.computed_now(lambda: function(keras.ops.convert_to_tensor(values)))
        if reads_variables:
            raise ValueError("A variable that a shard reads gets no gradient.")
        return np.asarray(keras.ops.convert_to_numpy(result))

    try:
        whole = found(numbers)
        rows = np.concatenate([found(numbers[:1]), found(numbers[1:])])
        columns = np.concatenate([found(numbers[:, :2]), found(numbers[:, 2:])], axis=1)
        single = found(numbers[1:2, 1:2])
    # A user's function may raise any error for shapes that it was not made for.
    except Exception:
        return False
    # Parts of another size may be rounded in another way.
    pairs = ((rows, whole), (columns, whole), (single, whole[1:2, 1:2]))
    return all(one.shape == other.shape and np.allclose(one, other, 1e-5, 1e-6) for one, other in pairs)


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
