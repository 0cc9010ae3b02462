"""Refuses models, layers and optimizers of Keras 2 (``tf_keras``) under our strategies.

They sum gradients by TensorFlow's rules, which differ from ours for Keras 3: weights would be wrong without an error.
They are recognized by the names of their modules; nothing of Keras 2 is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import tensorflow as tf

# TensorFlow has its own copy of Keras 2, which it imports itself and programs import by mistake.
_LEGACY = ("tf_keras", "tensorflow.python.keras")
# The depth to which functions that functions refer to are searched.
_DEPTH = 3


def refuse_caller() -> None:
    """Refuses a call from a module of Keras 2, for a variable, a step or a sum of gradients.

    Raises:
        ValueError: with the calling object of Keras 2.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if _is_legacy(module):
            owner = frame.f_locals.get("self")
            raise ValueError(_refusal(module if owner is None else _named(owner)))
        if module.split(".")[0] == "keras":
            # Keras 3 is the direct caller; its own callers do not matter.
            return
        frame = frame.f_back


def refuse_values(values: Iterable[Any]) -> None:
    """Refuses objects of Keras 2 among values, such as the arguments of ``compile``.

    Raises:
        ValueError: with the first such object.
    """
    for value in values:
        if _is_legacy(type(value).__module__):
            raise ValueError(_refusal(_named(value)))


def refuse_step(function: Any) -> None:
    """Refuses a step function that Keras 2 runs or that refers to its objects; no cost if ``tf_keras`` is not imported.

    Raises:
        ValueError: with the first such object.
    """
    if "tf_keras" in sys.modules:
        refuse_caller()
        refuse_values(_references(function, _DEPTH))


def _is_legacy(module: str) -> bool:
    return module in _LEGACY or module.startswith(tuple(f"{name}." for name in _LEGACY))


def _references(function: Any, depth: int) -> Iterator[Any]:
    """Yields the objects that a function refers to: its ``__self__``, its closure, and its globals, recursively."""
    function = getattr(function, "python_function", function)
    yield getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or depth == 0:
        return
    for cell in function.__closure__ or ():
        try:
            found = cell.cell_contents
        except ValueError:
            # An empty cell: the variable has not been set yet.
            continue
        yield found
        yield from _references(found, depth - 1)
    for name in code.co_names:
        found = function.__globals__.get(name)
        yield found
        if getattr(found, "__module__", None) == function.__module__:
            yield from _references(found, depth - 1)


def _named(value: Any) -> str:
    cls = type(value)
    name = getattr(value, "name", None)
    return f"{cls.__module__}.{cls.__qualname__}{f' {name!r}' if isinstance(name, str) else ''}"


def _refusal(received: str) -> str:
    strategy = type(tf.distribute.get_strategy()).__name__
    return (
        f"Keras 2 (tf_keras) does not work under strategies of this package, which are made for Keras 3: its gradients "
        "would be summed otherwise, and weights would not be those of one device. Make the model, its layers, the "
        "optimizer, losses and metrics with Keras 3: `import keras`, then keras.Model, keras.layers, keras.optimizers. "
        "If they come from tf.keras, unset the environment variable TF_USE_LEGACY_KERAS. "
        f"Received: {received}, under {strategy}."
    )
