"""Ratios of measurements, and tables of them. Pure: standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Two contenders whose ratio is of interest.

    Args:
        name: its row in the table.
        contender: name of the numerator.
        baseline: name of the denominator.
        target: the least acceptable ratio; None if the ratio is only for information.
        at_most: whether the target is the largest acceptable ratio instead, as for times and memory.
    """

    name: str
    contender: str
    baseline: str
    target: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Ratio:
    """The outcome of a comparison: the ratio of medians, and the quartiles of the ratios of each round."""

    of_medians: float
    lower_quartile: float
    upper_quartile: float


def ratio_of(measured: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Compares two contenders that were measured in the same rounds, at least once.

    Raises:
        ValueError: different numbers of rounds.
    """
    each = [one / other for one, other in zip(measured, baseline, strict=True)]
    return Ratio(statistics.median(measured) / statistics.median(baseline), *quartiles(each))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and the upper quartile, interpolated; for one value, that value twice."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper


def ratio_table(comparisons: Iterable[Comparison], measured: Mapping[str, Sequence[float]]) -> str:
    """Returns a Markdown table with one row per comparison."""
    rows = []
    for comparison in comparisons:
        ratio = ratio_of(measured[comparison.contender], measured[comparison.baseline])
        target, met = "", ""
        if comparison.target is not None:
            # Compared as printed: 0.996, printed as 1.00, meets a target of 1.00.
            target = f"{'<=' if comparison.at_most else '>='} {comparison.target:.2f}"
            over = round(ratio.of_medians, 3) - comparison.target
            met = "yes" if (over <= 0 if comparison.at_most else over >= 0) else "no"
        spread = f"{ratio.lower_quartile:.3f} to {ratio.upper_quartile:.3f}"
        rows.append((comparison.name, f"{ratio.of_medians:.3f}", spread, target, met))
    return markdown(("comparison", "ratio of medians", "quartiles of each round's ratio", "target", "met"), rows)


def value_table(measured: Mapping[str, Sequence[float]], unit: str) -> str:
    """Returns a Markdown table with one row per contender."""
    rows = []
    for name, values in measured.items():
        lower, upper = quartiles(values)
        rows.append((name, f"{statistics.median(values):.4g}", f"{lower:.4g} to {upper:.4g}"))
    return markdown(("contender", f"{unit}, median", "quartiles"), rows)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
