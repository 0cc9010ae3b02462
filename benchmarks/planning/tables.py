"""Tables of predicted and measured steps: signed errors, memory, and the choice of the best mesh."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planning.cases import Setting


@dataclass(frozen=True)
class Row:
    """A setting with its predicted and measured step.

    Attributes:
        model: its name.
        setting: the mesh.
        measured: median seconds of a step.
        predicted: median seconds of the predictions.
        held: bytes that `memory_report` finds on the device with the most.
        planned: bytes that `memory_plan` has for the same, without activations; None where it refuses the mesh.
    """

    model: str
    setting: Setting
    measured: float
    predicted: float
    held: int
    planned: int

    @property
    def error(self) -> float:
        """The predicted time divided by the measured one, less 1."""
        return self.predicted / self.measured - 1

    @property
    def memory_error(self) -> float:
        """The planned bytes divided by those held, less 1."""
        return self.planned / self.held - 1


def table(rows: Sequence[Row]) -> str:
    """Returns a table in Markdown of all rows."""
    lines = [
        "| model | setting | measured ms | predicted ms | error | MB | memory error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.setting.name} | {1e3 * row.measured:.1f} | {1e3 * row.predicted:.1f} "
            f"| {row.error:+.1%} | {row.held / 1e6:.1f} | {row.memory_error:+.1%} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Returns the median and the worst error, and how often the best mesh was chosen."""
    errors = sorted(abs(row.error) for row in rows)
    memory = [abs(row.memory_error) for row in rows]
    lines = [
        f"{len(rows)} steps: error {statistics.median(errors):.1%} at the median, {errors[-1]:.1%} at worst.",
        f"Memory of {len(memory)} settings: error {max(memory, default=0.0):.1%} at worst.",
    ]
    groups = _groups(rows)
    lost = {name: _lost(own) for name, own in groups.items()}
    near = sum(each <= 0.05 for each in lost.values())
    lines.append(f"The mesh called best is the best measured, or within 5 % of it, in {near} of {len(groups)} cases.")
    lines += [f"- {name}: {_choice(own)}" for name, own in groups.items()]
    return "\n".join(lines)


def _groups(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Returns the rows of each model and machine with several meshes."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row.model}, {row.setting.group}", []).append(row)
    return {name: own for name, own in found.items() if len(own) > 1}


def _lost(rows: Sequence[Row]) -> float:
    """Returns how much slower the mesh that was called best is than the best one."""
    chosen = min(rows, key=lambda row: row.predicted)
    return chosen.measured / min(row.measured for row in rows) - 1


def _choice(rows: Sequence[Row]) -> str:
    chosen, best = min(rows, key=lambda row: row.predicted), min(rows, key=lambda row: row.measured)
    if chosen is best:
        return f"{best.setting.name}, the best"
    return f"{chosen.setting.name}, {_lost(rows):.1%} slower than {best.setting.name}"
