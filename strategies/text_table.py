"""Plain-text tables, as which plans, partitions and reports are printed. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Returns a line for each row; columns are as wide as their longest cell, and two spaces apart.

    Args:
        rows: rows with equal numbers of cells; the first row is the heading.
        left: the indices of left-aligned columns, such as names; the others are right-aligned, such as numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
