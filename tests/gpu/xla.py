"""Checks that XLA compiles a model's training step, or the replicas' parts of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def full_float32() -> None:
    """Turns TF32 off.

    `strategies.exact()` would also make operations deterministic, and Keras then ignores `jit_compile=True`.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)


def must_compile(function: Any) -> set[str]:
    """Returns the names of the functions that XLA has to compile in a train, test or predict function of Keras."""
    return {each.signature.name for each in _definitions(function) if each.attr["_XlaMustCompile"].b}


def require_xla(*several: Any) -> None:
    """Raises RuntimeError if XLA compiles nothing of a model's training step; call it after `fit`."""
    for model in several:
        if not must_compile(model.train_function):
            raise RuntimeError(f"XLA compiles nothing of the training step of {model.name}; the log says why.")


def _definitions(function: Any) -> Iterator[Any]:
    """Yields the definitions of all functions traced for `function`, and of the functions that they call."""
    for traced in _traced(function, set()):
        # TensorFlow has no public list of them.
        for concrete in traced._list_all_concrete_functions():
            yield concrete.function_def
            yield from concrete.graph.as_graph_def().library.function


def _traced(function: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the `tf.function`s among a function and its closures, also in lists."""
    if id(function) in seen:
        return
    seen.add(id(function))
    for each in function if isinstance(function, (list, tuple)) else ():
        yield from _traced(each, seen)
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        yield function
        yield from _traced(function.python_function, seen)
    for cell in getattr(function, "__closure__", None) or ():
        yield from _traced(cell.cell_contents, seen)
    if hasattr(function, "__wrapped__"):
        yield from _traced(function.__wrapped__, seen)
