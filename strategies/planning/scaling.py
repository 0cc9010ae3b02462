"""The best mesh of several numbers of devices: its efficiency, and the parts of the time that take the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from strategies.planning.search import Search
from strategies.planning.step_time import StepTime
from strategies.text_table import text_table


def scaling_table(
    search: Callable[[int, int], Search],
    numbers: Sequence[int],
    *,
    batch_size: int,
    num_devices: int,
    units_of_row: int,
    unit: str,
) -> tuple[str, bool]:
    """Returns the table, and True if the model fits on some number of devices.

    Args:
        search: takes rows of the global batch and a number of devices.
        numbers: the numbers of devices to compare; efficiency is relative to the first on which the model fits.
        batch_size: rows of the global batch on `num_devices`; with more devices there are more rows.
        num_devices: the devices of the batch.
        units_of_row: tokens or images of a row.
        unit: their name.

    Raises:
        ValueError: a number of devices has no whole number of rows.
    """
    if num_devices < 1 or any(batch_size * number % num_devices for number in numbers):
        raise ValueError(
            "The rows grow with the GPUs, so that each number of GPUs needs a whole number of rows. Received: "
            f"{batch_size} rows on {num_devices} GPUs, to be scaled to {', '.join(map(str, numbers))}."
        )
    shown = [part.name for part in dataclasses.fields(StepTime) if part.name not in ("layers", "logits")]
    rows: list[list[str]] = []
    parts_of_rows: list[dict[str, float]] = []
    first = 0.0
    for number in numbers:
        num_rows = batch_size * number // num_devices
        found = search(num_rows, number)
        if not found.best:
            rows.append([str(number), str(num_rows), "does not fit", "", ""])
            parts_of_rows.append({})
            continue
        [best, *_] = found.best
        parts, layout = best.time.parts(), best.layout
        per_device = num_rows * units_of_row / best.time.total / number
        first = first or per_device
        mesh = " x ".join(str(size) for size in layout.mesh.values())
        rows.append([str(number), str(num_rows), mesh, f"{per_device:,.0f}", f"{per_device / first:.0%}"])
        parts_of_rows.append({name: parts[name] / best.time.total for name in shown})
    # Parts that no row has are not shown.
    shown = [name for name in shown if any(parts.get(name) for parts in parts_of_rows)]
    for row, parts in zip(rows, parts_of_rows, strict=True):
        row += [f"{parts[name]:.1%}" if parts else "" for name in shown]
    heading = ("GPUs", "rows", "mesh", f"{unit}/s of a GPU", "efficiency", *shown)
    return "\n".join(text_table([heading, *map(tuple, rows)], left=())), first > 0
