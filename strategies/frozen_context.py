"""Frozen values that hold for a block of code, in the thread or task that runs it."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class FrozenContext(Generic[Value]):
    """A context variable that holds a frozen dataclass; blocks of code replace some of its fields.

    Args:
        name: a name for debuggers.
        outermost: the value outside of all blocks.
    """

    def __init__(self, name: str, outermost: Value) -> None:
        self._value = contextvars.ContextVar(name, default=outermost)

    def get(self) -> Value:
        """Returns the value that holds here."""
        return self._value.get()

    @contextlib.contextmanager
    def changing(self, **fields: Any) -> Iterator[None]:
        """Context manager: the fields given as arguments have other values."""
        # Python has no public bound for type variables that are dataclasses.
        changed: Any = dataclasses.replace(self._value.get(), **fields)  # type: ignore[type-var]
        token = self._value.set(changed)
        try:
            yield
        finally:
            self._value.reset(token)
