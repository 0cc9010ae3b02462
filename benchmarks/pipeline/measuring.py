"""Measurements of contenders, and the lifetime of their processes."""

from __future__ import annotations

from collections.abc import Sequence

from harness import rounds
from harness.turns import by_case

from pipeline import parts
from pipeline.cases import Workload
from pipeline.contenders import contenders


def measure(workload: Workload, names: Sequence[str], timeout_seconds: float) -> dict[str, list[float]]:
    """Measures every case of every contender once in each round; adds the reference values.

    Raises:
        WorkerError: a contender fails, dies or takes too long. All processes are ended then.
    """
    count = len(workload.cases)
    # A process has only one first step.
    lives = workload.num_rounds if parts.PARTS[workload.part].is_of_first_step else 1
    turns: dict[str, list[float]] = {}
    for _ in range(lives):
        found = rounds.measure_in_turn(
            contenders(names, workload),
            workload.num_rounds * count // lives,
            timeout_seconds,
            # Joint work of several processes ends when the last one has finished.
            combine=max,
        )
        for row, values in found.items():
            turns.setdefault(row, []).extend(values)
    return {**by_case(turns, workload.cases), **parts.references(workload)}
