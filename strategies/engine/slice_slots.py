"""Slots of slices: the variables that an optimizer makes for a range of a weight are on the device of its owner."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strategies.replica.weight_slices import WeightSlice

#: The slice for which a slot is being made.
_slot_of: contextvars.ContextVar[WeightSlice | None] = contextvars.ContextVar("keras_strategies_slot_of", default=None)


class Announced(list[Any]):
    """Slices of which each, while it is the turn of a loop over the list, gets the variables that are made.

    Optimizers make slots in loops over their variables, not all of them by saying for which one.
    """

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            with making_slot_of(each):
                yield each


@contextmanager
def making_slot_of(each: WeightSlice) -> Iterator[None]:
    """Inside, the variable that is made is a slot of a slice: on the device of its owner only."""
    token = _slot_of.set(each)
    try:
        yield
    finally:
        _slot_of.reset(token)


def slice_in_need_of_slot() -> WeightSlice | None:
    """Returns the slice for which a slot is being made, if one is."""
    return _slot_of.get()
