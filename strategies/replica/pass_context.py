"""The pass that is being traced, forward or backward: one frozen value with what holds for it."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class PassContext:
    """The pass that is being traced.

    Attributes:
        placeholders: the `Placeholders` that the traced function captures instead of sharded weights; None where
            weights are gathered when they are read.
        is_recomputed: whether the pass is computed a second time in the backward pass.
        is_differentiated: whether the pass of a `Passes` is differentiated; more forward passes may follow.
    """

    placeholders: Any = None
    is_recomputed: bool = False
    is_differentiated: bool = False


_NO_PASS = PassContext()
_context: contextvars.ContextVar[PassContext] = contextvars.ContextVar("keras_strategies_pass", default=_NO_PASS)


def pass_context() -> PassContext:
    """Returns what holds for the pass that is being traced."""
    return _context.get()


@contextlib.contextmanager
def tracing_pass(**changed: Any) -> Iterator[None]:
    """Context manager: the attributes of the pass context given as arguments have other values."""
    token = _context.set(dataclasses.replace(_context.get(), **changed))
    try:
        yield
    finally:
        _context.reset(token)
