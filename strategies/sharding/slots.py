"""Slots of slices: variables that an optimizer creates for a range of a weight are on the device of its owner.

Where an optimizer names the weight of a slot (``add_variable_from_reference``), the slice is known. Not all do:
Adafactor makes its row and column factors by ``add_variable(shape=...)`` and the dummies of vectors by ``Variable(0)``,
and users' optimizers do likewise. All make them in a loop over the variables that they are built with, and only the
loop tells for which slice a variable is. So the list over which they iterate says, at each element, whose slot is made.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strategies.replica.weight_slices import WeightSlice

#: The slice for which a slot is being created.
_current: contextvars.ContextVar[WeightSlice | None] = contextvars.ContextVar(
    "keras_strategies_slot_owner", default=None
)


class Announced(list[Any]):
    """A list of slices: while it is iterated, new variables become slots of the current slice."""

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            with creating_slot(each):
                yield each


@contextmanager
def creating_slot(each: WeightSlice) -> Iterator[None]:
    """Context manager: a new variable is a slot of the slice, on the device of its owner only."""
    token = _current.set(each)
    try:
        yield
    finally:
        _current.reset(token)


def current_slice() -> WeightSlice | None:
    """Returns the slice for which a slot is being created, or None."""
    return _current.get()
