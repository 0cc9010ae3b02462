"""The parity table: the measurements of the tests, as a page for the docs."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from tests.measured import measured_today
from tests.strategies.parity.harness import TOLERANCE, Case, Difference

#: The columns: strategy, processes, and replicas of each process.
World = tuple[str, int, int]

WORLDS: tuple[World, ...] = (
    ("MirroredStrategy", 1, 2),
    ("MirroredStrategy", 1, 4),
    ("MultiWorkerMirroredStrategy", 2, 1),
    ("MultiWorkerMirroredStrategy", 4, 1),
    ("MultiWorkerMirroredStrategy", 2, 2),
    ("HorovodStrategy", 2, 1),
    ("HorovodStrategy", 4, 1),
)


class Table:
    """Differences by case and world."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, World], Difference] = {}

    def record(self, name: str, world: World, difference: Difference) -> None:
        """Records one measured difference."""
        self.cells[name, world] = difference

    def write(self, path: pathlib.Path, sections: Mapping[str, Sequence[Case]]) -> None:
        """Writes the page."""
        path.write_text(render(self.cells, sections))


def title(world: World) -> str:
    """Returns the heading of a column."""
    name, num_processes, num_local = world
    if num_processes == 1:
        return f"{name.removesuffix('Strategy')}, {num_local} devices"
    devices = "" if num_local == 1 else f" x {num_local} devices"
    return f"{name.removesuffix('Strategy')}, {num_processes} processes{devices}"


def render(cells: Mapping[tuple[str, World], Difference], sections: Mapping[str, Sequence[Case]]) -> str:
    """Returns the page as Markdown."""
    lines = [
        "# Parity with one device",
        "",
        "Written by `make parity` from the tests in `tests/strategies/parity`. Each row trains the same model on the",
        "same global batches, once with plain Keras on one device and once under each strategy, on CPU devices of one",
        "machine. A cell has the largest difference of any weight or optimizer slot, and that of any log (every",
        "batch's and every epoch's metrics, `evaluate` and `predict`), relative where the value exceeds 1.",
        f"Every number is at most {TOLERANCE:g}, unless the last column states another bound (mixed precision).",
        "All processes of a job end with the same weights, slots and logs, to the bit. A dash: not run for this page",
        "(`pytest tests/strategies/parity --parity-all --parity-table FILE` runs everything, in some hours).",
        measured_today(),
        "",
    ]
    for section, cases in sections.items():
        lines += [f"## {section}", "", "| feature | " + " | ".join(map(title, WORLDS)) + " | bound |"]
        lines += ["|---|" + "---|" * (len(WORLDS) + 1)]
        for case in cases:
            found = [cells.get((case.name, world)) for world in WORLDS]
            row = ["-" if c is None else f"{max(c.weights, c.slots):.1e} / {c.logs:.1e}" for c in found]
            lines += [f"| {case.name} | " + " | ".join(row) + f" | {case.tolerance:g} |"]
        lines += [""]
    return "\n".join(lines)
