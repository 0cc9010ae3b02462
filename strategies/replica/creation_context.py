"""The variables that are being created: one frozen value with what holds for them."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class CreationContext:
    """The variables that are being created.

    Attributes:
        form: the shape and the dtype of the variable that Keras creates from a callable, which does not reveal them.
        row_axis: the mesh axis over which the rows (first dimension) of new weights are sharded; None if they are not.
        draws_in_place: whether large initial values are drawn in the memory of their variable.
    """

    form: tuple[Sequence[int], str] | None = None
    row_axis: Literal["data", "expert"] | None = None
    draws_in_place: bool = False


_ORDINARY = CreationContext()
_context: contextvars.ContextVar[CreationContext] = contextvars.ContextVar(
    "keras_strategies_creation", default=_ORDINARY
)


def creation_context() -> CreationContext:
    """Returns what holds for the variables that are being created."""
    return _context.get()


@contextlib.contextmanager
def creating(**changed: Any) -> Iterator[None]:
    """Context manager: the attributes of the creation context given as arguments have other values."""
    token = _context.set(dataclasses.replace(_context.get(), **changed))
    try:
        yield
    finally:
        _context.reset(token)
