"""Describes what the collectives carry that are being created. Their callers set it; the transports read it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_text: contextvars.ContextVar[str] = contextvars.ContextVar("keras_strategies_description", default="")


@contextlib.contextmanager
def carrying(what: str) -> Iterator[None]:
    """Runs the block with `what`, as in "gradients of dense/kernel", as description; nested blocks override it."""
    token = _text.set(what)
    try:
        yield
    finally:
        _text.reset(token)


def carried() -> str:
    """Returns the description of what collectives carry now; empty if none is set."""
    return _text.get()


def listed(names: list[str], at_most: int = 2) -> str:
    """Returns "a, b and 3 more"."""
    more = len(names) - at_most
    return f"{', '.join(names[:at_most])}{f' and {more} more' if more > 0 else ''}"
