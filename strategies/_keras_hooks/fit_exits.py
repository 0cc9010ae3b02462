"""Functions that run when `fit` of a model is left, also by an error: Keras then calls no ``on_train_end``."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

# The functions of the method of a model that runs.
_open: contextvars.ContextVar[contextlib.ExitStack | None] = contextvars.ContextVar(
    "keras_strategies_fit_exits", default=None
)


def at_exit_of_fit(function: Callable[[], object]) -> None:
    """Has a function run when the `fit` that runs is left. For callbacks, in ``on_train_begin``.

    Under no strategy of ours, and in loops of users, `fit` has no hook, and the function does not run.

    Args:
        function: it must not raise.
    """
    stack = _open.get()
    if stack is not None:
        stack.callback(function)


@contextlib.contextmanager
def exits() -> Iterator[None]:
    """Context manager around a method of a model: runs the functions at its end, the last one first."""
    with contextlib.ExitStack() as stack:
        token = _open.set(stack)
        try:
            yield
        finally:
            _open.reset(token)
