"""The contenders and their comparisons. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.clusters import Slots
from harness.ratios import Comparison
from harness.workers import Contender, Report

from generation.workload import Workload

# Two cores read each half of the weights: the bound is 2. One all-reduce per half block is not free.
TARGET_OF_TENSOR = 1.3
# Of the bound of stages, see `bound_of_pipe`.
TARGET_OF_PIPE = 0.7


@dataclass(frozen=True)
class Kind:
    """One way to generate.

    Attributes:
        row: row in the tables.
        cluster: how its processes are connected: "none", "tensorflow" or "horovod".
        axis: the mesh axis over its two processes; None for plain KerasHub in one process.
        num_groups: the number of groups of rows in flight; 0 for one of each row.
        one_row: True to generate for one prompt only.
        requires: the distribution to be installed besides ours.
    """

    row: str
    cluster: str = "none"
    axis: str | None = None
    num_groups: int = 1
    one_row: bool = False
    requires: str = "keras_hub"


KINDS: Mapping[str, Kind] = {
    "plain": Kind("plain KerasHub, one core"),
    "plain_one_row": Kind("plain KerasHub, one core, one row", one_row=True),
    "tensor": Kind("tensor=2, MultiWorkerMirroredStrategy", "tensorflow", "tensor"),
    "tensor_horovod": Kind("tensor=2, HorovodStrategy", "horovod", "tensor", requires="horovod"),
    "pipe": Kind("pipe=2, a group for each row, MultiWorkerMirroredStrategy", "tensorflow", "pipe", 0),
    "pipe_two_groups": Kind("pipe=2, two groups, MultiWorkerMirroredStrategy", "tensorflow", "pipe", 2),
    "pipe_horovod": Kind("pipe=2, a group for each row, HorovodStrategy", "horovod", "pipe", 0, requires="horovod"),
    "plain_again": Kind("plain KerasHub, one core, a second process"),
}
#: The row of the bound of stages that work on single rows.
BOUND = "pipe=2, bound by plain KerasHub's single rows"


def contenders(names: Sequence[str], workload: Workload, horovod_slots: Slots) -> list[Contender]:
    """Returns the contenders of those names, in that order: one core and one thread for each process."""
    return [
        clusters.contender(
            KINDS[name].row,
            functools.partial(_run, KINDS[name], workload),
            KINDS[name].cluster,
            1 if KINDS[name].axis is None else 2,
            horovod_slots,
        )
        for name in names
    ]


def comparisons(names: Collection[str]) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""

    def row(name: str) -> str:
        return KINDS[name].row

    found = []
    if "plain" in names:
        for name in ("tensor", "tensor_horovod", "pipe", "pipe_two_groups", "pipe_horovod", "plain_again"):
            if name in names:
                target = TARGET_OF_TENSOR if name == "tensor" else None
                found.append(Comparison(f"{name} / plain", row(name), row("plain"), target))
    if "plain_one_row" in names:
        found += [
            Comparison(f"{name} / its bound", row(name), BOUND, TARGET_OF_PIPE if name == "pipe" else None)
            for name in ("pipe", "pipe_horovod")
            if name in names
        ]
    return found


def bound_of_pipe(measured: Mapping[str, Sequence[float]], num_rows: int) -> dict[str, list[float]]:
    """Returns the bound of two stages with a group for each row, in each round.

    A stage takes half of the time ``t`` of a single row. The rows of a token pass in ``(num_rows + 1) t / 2``, as the
    second stage begins when the first has its first row. Then the next token can begin.
    """
    alone = measured.get(KINDS["plain_one_row"].row)
    return {} if alone is None else {BOUND: [2 * num_rows / (num_rows + 1) * each for each in alone]}


def _run(kind: Kind, workload: Workload, report: Report) -> None:
    from generation import generating

    if kind.one_row:
        workload = dataclasses.replace(workload, num_rows=1)
    generating.run(workload, kind.cluster, kind.axis, kind.num_groups or workload.num_rows, report)
