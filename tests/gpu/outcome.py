"""The outcome of a case, and the table of all outcomes. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

HEADER = ("case", "result", "difference", "allowed", "ms a step", "peak MB", "note")


@dataclass(frozen=True)
class Outcome:
    """One row of the table.

    Attributes:
        result: "ok", "differs", "failed", "timeout", or "left out" if the suite ran out of time.
        difference: the largest one from one device, relative to the largest weight of its variable, if that is over 1.
        allowed: the tolerance; None if the difference is only reported.
        ms: milliseconds per step.
        peak_mb: peak of the first device's allocator; None on CPUs, which have no such count.
    """

    case: str
    result: str = "ok"
    difference: float | None = None
    allowed: float | None = None
    ms: float | None = None
    peak_mb: float | None = None
    note: str = ""

    @classmethod
    def from_json(cls, line: str) -> Outcome:
        """Returns the outcome that `as_json` wrote."""
        return cls(**json.loads(line))

    def as_json(self) -> str:
        """Returns the outcome as one line."""
        return json.dumps(dataclasses.asdict(self))


def judged(case: str, difference: float, allowed: float | None, **rest: Any) -> Outcome:
    """Returns an outcome, "ok" if the difference is allowed, or finite if `allowed` is None; NaN is not allowed."""
    ok = math.isfinite(difference) if allowed is None else difference <= allowed
    return Outcome(case, "ok" if ok else "differs", difference, allowed, **rest)


def table(outcomes: Iterable[Outcome]) -> str:
    """Returns a Markdown table with one row per outcome."""
    rows = [HEADER, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(lines)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        outcome.case,
        outcome.result,
        number(outcome.difference, ".1e"),
        number(outcome.allowed, ".0e"),
        number(outcome.ms, ".1f"),
        number(outcome.peak_mb, ".0f"),
        outcome.note.replace("|", "/").replace("\n", " "),
    )
