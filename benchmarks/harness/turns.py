"""The order in which the same processes measure several cases in turn. Pure: standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar


class Labelled(Protocol):
    """A case, with a label that is unique in its benchmark."""

    @property
    def label(self) -> str:
        """The name in the tables."""


C = TypeVar("C", bound=Labelled)


def turns(cases: Sequence[C]) -> Iterator[C]:
    """Returns the endless sequence of cases that a contender's turns measure.

    Every other pass goes backwards, as the contenders' rounds do: so each case is measured in both orders.
    """
    return itertools.cycle([*cases, *reversed(cases)])


def by_case(measured: Mapping[str, Sequence[float]], cases: Sequence[Labelled]) -> dict[str, list[float]]:
    """Groups the measurements of all turns by contender and case."""
    result: dict[str, list[float]] = {row_of(row, case): [] for case in cases for row in measured}
    for row, values in measured.items():
        for case, value in zip(turns(cases), values, strict=False):
            result[row_of(row, case)].append(value)
    return result


def row_of(row: str, case: Labelled) -> str:
    """Returns the row of a contender's case."""
    return f"{row}: {case.label}"
