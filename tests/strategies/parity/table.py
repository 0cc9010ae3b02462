"""The parity table: what the tests measured, as a page for the docs."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from tests.strategies.parity.harness import TOLERANCE, Case, Difference


class Table:
    """Differences by case and number of replicas."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, int], Difference] = {}

    def record(self, name: str, num_replicas: int, difference: Difference) -> None:
        """Notes one measured difference."""
        self.cells[name, num_replicas] = difference

    def write(self, path: pathlib.Path, sections: Mapping[str, Sequence[Case]], replicas: Sequence[int]) -> None:
        """Writes the page. Raises KeyError if a case was not measured."""
        path.write_text(render(self.cells, sections, replicas))


def render(
    cells: Mapping[tuple[str, int], Difference],
    sections: Mapping[str, Sequence[Case]],
    replicas: Sequence[int],
) -> str:
    """Returns the page as Markdown."""
    heads = [f"{n} replicas: {what}" for n in replicas for what in ("weights and slots", "logs")]
    lines = [
        "# Parity with one device",
        "",
        "Written by `make parity` from the tests in `tests/strategies/parity`. Each row trains the same model on the",
        "same global batches, once with plain Keras on one device and once under `MirroredStrategy` on logical CPU",
        "devices. A cell is the largest difference of any weight or optimizer slot, and of any log (every batch's and",
        "every epoch's metrics, `evaluate` and `predict`), relative where the value exceeds 1.",
        f"Every cell is at most {TOLERANCE:g}, unless the last column states another bound (mixed precision).",
        "",
    ]
    for title, cases in sections.items():
        lines += [f"## {title}", "", "| feature | " + " | ".join(heads) + " | bound |"]
        lines += ["|---|" + "---|" * (len(heads) + 1)]
        for case in cases:
            row = []
            for n in replicas:
                cell = cells[case.name, n]
                row += [f"{max(cell.weights, cell.slots):.1e}", f"{cell.logs:.1e}"]
            lines += [f"| {case.name} | " + " | ".join(row) + f" | {case.tolerance:g} |"]
        lines += [""]
    return "\n".join(lines)
