"""Slots of slices: variables that an optimizer creates for a range of a weight are on the device of its owner."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strategies.replica.weight_slices import WeightSlice

#: The slice for which a slot is being created.
_slot_of: contextvars.ContextVar[WeightSlice | None] = contextvars.ContextVar("keras_strategies_slot_of", default=None)


class Announced(list[Any]):
    """A list of slices: while it is iterated, new variables become slots of the current slice.

    Optimizers create slots in loops over their variables, and not all of them name the variable of a slot.
    """

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            with making_slot_of(each):
                yield each


@contextmanager
def making_slot_of(each: WeightSlice) -> Iterator[None]:
    """Context manager: a new variable is a slot of the slice, on the device of its owner only."""
    token = _slot_of.set(each)
    try:
        yield
    finally:
        _slot_of.reset(token)


def slice_in_need_of_slot() -> WeightSlice | None:
    """Returns the slice for which a slot is being created, or None."""
    return _slot_of.get()
