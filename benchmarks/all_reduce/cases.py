"""The reduced cases, and their turns. Pure: standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

FLOAT_BYTES = 4
# The number of measurements of a case in a row: one while rounds go forwards through the contenders, one backwards.
_IN_A_ROW = 2


@dataclass(frozen=True)
class Case:
    """One all-reduce.

    Attributes:
        megabytes: size, in 10^6 bytes.
        as_list: whether it is a list of many tensors, like gradients, or one tensor.
        of_processor: whether CPU seconds of the process are measured, instead of elapsed seconds.
    """

    megabytes: float
    as_list: bool
    of_processor: bool = False

    def __str__(self) -> str:
        return f"{self.megabytes:g} MB, {'list' if self.as_list else 'one tensor'}"

    @property
    def tensor_sizes(self) -> list[int]:
        """The number of elements of each tensor.

        A list has 32: large ones, of a tenth of the bytes each, among small ones, of a third of a percent.
        """
        total = max(32, round(self.megabytes * 1e6 / FLOAT_BYTES))
        if not self.as_list:
            return [total]
        weights = [2 ** (index % 6) for index in range(32)]
        ends = [total * part // sum(weights) for part in itertools.accumulate(weights)]
        return [max(1, end - begin) for begin, end in itertools.pairwise([0, *ends])]

    @property
    def gigabytes(self) -> float:
        """The size, in 10^9 bytes."""
        return sum(self.tensor_sizes) * FLOAT_BYTES / 1e9

    @property
    def num_calls(self) -> int:
        """The number of all-reduces per measurement, which is their median."""
        return max(5, min(50, int(50 / max(self.megabytes, 0.01) ** 0.5)))


def make_cases(megabytes: Sequence[float], of_processor: bool = False) -> list[Case]:
    """Returns every size as one tensor and as a list."""
    return [Case(size, as_list, of_processor) for size in megabytes for as_list in (False, True)]


def turns(all_cases: Sequence[Case]) -> Iterator[Case]:
    """Yields the case of each turn of a contender, without end."""
    while True:
        for case in all_cases:
            yield from [case] * _IN_A_ROW


def num_turns(all_cases: Sequence[Case], num_rounds: int) -> int:
    """Returns the number of turns in which every case is measured twice per round."""
    return len(all_cases) * num_rounds * _IN_A_ROW


def by_case(measured: Mapping[str, Sequence[float]], all_cases: Sequence[Case]) -> dict[str, list[float]]:
    """Groups the measurements of all turns by contender and case."""
    result: dict[str, list[float]] = {row_of(row, case): [] for case in all_cases for row in measured}
    for row, values in measured.items():
        for case, value in zip(turns(all_cases), values, strict=False):
            result[row_of(row, case)].append(value)
    return result


def row_of(row: str, case: Case) -> str:
    """Returns the row of a contender's measurements of one case."""
    return f"{row}, {case}"
