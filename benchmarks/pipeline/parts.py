"""The parts of the benchmark: contenders, sizes, comparisons and targets. Pure data."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.ratios import Comparison
from harness.turns import row_of

from pipeline.cases import Case, Workload
from pipeline.kinds import KINDS

#: Rows of the tables that are not measured, by the name that comparisons use.
REFERENCES = {
    "ideal": "m p / (m + p - 1)",
    "ideal_zb_h1": "3 m p / (3 m + p - 1)",
    "ideal_zb_v": "6 m p / (6 m + p - 1)",
    "limit": "limit",
}
LIMIT_OF_TRACE_SECONDS = 20.0
#: Rows of one micro-batch, for parts whose batch size is not set by a flag.
ROWS_OF_MICROBATCH = {"sleep": 1, "memory": 4, "trace": 2}


@dataclass(frozen=True)
class Part:
    """One part of the benchmark.

    Attributes:
        contenders: names of the contenders, in the order of their turns.
        unit: unit of the measurements.
        compared: contender, baseline, target (None where the ratio is for information), whether that is an upper bound.
        stages, microbatches: the numbers measured, in all combinations.
        num_steps, num_rounds: defaults.
        is_of_first_step: whether each process measures only its first step, so that each round needs new processes.
    """

    contenders: tuple[str, ...]
    unit: str
    compared: tuple[tuple[str, str, float | None, bool], ...]
    stages: tuple[int, ...]
    microbatches: tuple[int, ...]
    num_steps: int
    num_rounds: int
    is_of_first_step: bool = False


PARTS: Mapping[str, Part] = {
    "sleep": Part(
        ("gpipe", "1f1b", "zb_h1", "zb_v", "v_half"),
        "speedup over the stages one after the other",
        (
            ("gpipe", "ideal", 0.95, False),
            ("1f1b", "ideal", 0.95, False),
            ("zb_h1", "ideal_zb_h1", 0.96, False),
            ("zb_v", "ideal_zb_v", 0.95, False),
            ("zb_h1", "1f1b", None, False),
            ("zb_v", "1f1b", None, False),
            ("v_half", "1f1b", None, False),
        ),
        (2, 4, 8),
        (8, 16, 32),
        num_steps=1,
        num_rounds=3,
    ),
    "dense": Part(
        (
            *("plain", "gpipe", "torch_gpipe", "1f1b", "torch_1f1b", "zb_h1", "zb_v", "torch_zb_v"),
            *("1f1b_processes", "zb_h1_processes"),
        ),
        "ms/step",
        (
            ("gpipe", "torch_gpipe", 0.85, True),
            ("1f1b", "torch_1f1b", 0.85, True),
            ("gpipe", "plain", None, True),
            ("1f1b", "plain", None, True),
            ("zb_h1", "1f1b", None, True),
            ("zb_v", "1f1b", None, True),
            ("zb_v", "torch_zb_v", None, True),
            ("zb_h1_processes", "1f1b_processes", 0.97, True),
            ("zb_h1_processes", "torch_zb_v", None, True),
            ("1f1b_processes", "torch_1f1b", None, True),
            ("torch_zb_v", "torch_1f1b", None, True),
        ),
        (2,),
        (8,),
        num_steps=3,
        num_rounds=9,
    ),
    "one_stage": Part(
        ("plain", "one_stage", "plain_again"),
        "rows/s",
        (("one_stage", "plain", 0.97, False), ("plain_again", "plain", None, False)),
        (1,),
        (1,),
        num_steps=3,
        num_rounds=11,
    ),
    "memory": Part(
        ("plain", "gpipe", "1f1b", "zb_h1", "zb_v", "v_half"),
        "MB",
        (
            ("1f1b", "gpipe", 0.45, True),
            ("gpipe", "plain", None, True),
            ("1f1b", "plain", None, True),
            ("zb_h1", "1f1b", None, True),
            ("zb_v", "1f1b", None, True),
            ("v_half", "1f1b", None, True),
        ),
        (4,),
        (16,),
        num_steps=3,
        num_rounds=3,
    ),
    "trace": Part(
        ("1f1b", "unrolled"),
        "s to trace and do the first step",
        (("1f1b", "limit", 1.0, True), ("1f1b", "unrolled", None, True)),
        (4,),
        (32,),
        num_steps=1,
        num_rounds=3,
        is_of_first_step=True,
    ),
}


def workload(
    name: str,
    size: float,
    batch_sizes: Sequence[int],
    stages: Sequence[int] | None = None,
    microbatches: Sequence[int] | None = None,
    num_steps: int | None = None,
    num_rounds: int | None = None,
) -> Workload:
    """Returns the workload of a part; arguments left out take the part's defaults.

    Args:
        name: name of the part.
        size: the size that the part varies; see `Case`.
        batch_sizes: rows of a step, for dense layers; the other parts have a few rows per micro-batch.
        stages, microbatches: numbers of them; ignored for "one_stage".
        num_steps: number of steps per measurement.
        num_rounds: number of measurements of each case.
    """
    part = PARTS[name]
    if name == "one_stage":
        stages = microbatches = None
    cases = []
    for p, m in itertools.product(stages or part.stages, microbatches or part.microbatches):
        own = batch_sizes if name in ("dense", "one_stage") else [ROWS_OF_MICROBATCH[name] * m]
        cases += [Case(f"p={p}, m={m}, batch {rows}", p, m, rows, size) for rows in own]
    return Workload(name, tuple(cases), num_steps or part.num_steps, num_rounds or part.num_rounds)


def comparisons(name: str, names: Collection[str], case: Case) -> list[Comparison]:
    """Returns the comparisons of a case, between the contenders in `names` and the references."""
    known = {*names, *REFERENCES}
    return [
        Comparison(f"{one} / {other}: {case.label}", _row(one, case), _row(other, case), target, at_most)
        for one, other, target, at_most in PARTS[name].compared
        if {one, other} <= known
    ]


def references(load: Workload) -> dict[str, list[float]]:
    """Returns the reference values of comparisons, which are not measured, repeated for each round."""
    wanted = {other for _, other, _, _ in PARTS[load.part].compared} & set(REFERENCES)

    def value(name: str, case: Case) -> float:
        ideals = {
            "ideal": case.ideal_speedup,
            "ideal_zb_h1": case.ideal_speedup_of_zb_h1,
            "ideal_zb_v": case.ideal_speedup_of_zb_v,
        }
        return ideals.get(name, LIMIT_OF_TRACE_SECONDS)

    return {_row(name, case): [value(name, case)] * load.num_rounds for case in load.cases for name in sorted(wanted)}


def _row(name: str, case: Case) -> str:
    return row_of(REFERENCES.get(name) or KINDS[name].row, case)
