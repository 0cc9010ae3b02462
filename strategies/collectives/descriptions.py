"""The words for what a collective carries, for messages: told by who calls collectives, read where they are made."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_text: contextvars.ContextVar[str] = contextvars.ContextVar("keras_strategies_description", default="")


@contextlib.contextmanager
def carrying(what: str) -> Iterator[None]:
    """Inside, collectives carry `what`, as in "gradients of dense/kernel", unless a caller further in says more."""
    token = _text.set(what)
    try:
        yield
    finally:
        _text.reset(token)


def carried() -> str:
    """Returns what collectives carry here; empty if nobody has said it."""
    return _text.get()


def listed(names: list[str], at_most: int = 2) -> str:
    """Returns "a, b and 3 more"."""
    more = len(names) - at_most
    return f"{', '.join(names[:at_most])}{f' and {more} more' if more > 0 else ''}"
