"""Several cases measured in turn by the same processes. Pure: standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar


class Labelled(Protocol):
    """A case, whose label is unlike all others' of its benchmark."""

    @property
    def label(self) -> str:
        """Names it in the tables."""


C = TypeVar("C", bound=Labelled)


def turns(cases: Sequence[C]) -> Iterator[C]:
    """Returns the cases that a contender's turns measure, one after the other, without end.

    Every other pass goes backwards, as the contenders' turns do: so each case is measured in both orders of them.
    """
    return itertools.cycle([*cases, *reversed(cases)])


def by_case(measured: Mapping[str, Sequence[float]], cases: Sequence[Labelled]) -> dict[str, list[float]]:
    """The measurements of all turns, put under the names of contender and case."""
    result: dict[str, list[float]] = {row_of(row, case): [] for case in cases for row in measured}
    for row, values in measured.items():
        for case, value in zip(turns(cases), values, strict=False):
            result[row_of(row, case)].append(value)
    return result


def row_of(row: str, case: Labelled) -> str:
    """The row of a contender's case."""
    return f"{row}: {case.label}"
