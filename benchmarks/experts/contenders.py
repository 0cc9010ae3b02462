"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools

from harness.ratios import Comparison
from harness.workers import Contender, Report

from experts.workload import Workload

# Release criterion, a ratio of times: a quarter of the matrix products, plus the cost of sorting.
TARGET = 0.4

HUB = "keras_hub MixtralSparseMoeBlock"
HUB_AGAIN = f"{HUB}, a second process"
REPLACED = f"{HUB}, replace_experts"
OURS = "keras_ext.MixtureOfExperts"
PLAIN = f"{OURS}, as plain Keras opens it"

#: By name: the program in `experts.training`.
_PROGRAMS = {HUB: "hub", REPLACED: "replaced", OURS: "ours", PLAIN: "plain", HUB_AGAIN: "hub"}

#: One core and one thread: the comparison is of the work.
_ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}


def contenders(workload: Workload, core: int) -> list[Contender]:
    """Returns all contenders, each on the same single core."""
    return [
        Contender(name, functools.partial(_run, program, workload), (_ONE_THREAD,), ((core,),))
        for name, program in _PROGRAMS.items()
    ]


def comparisons() -> list[Comparison]:
    """Returns the comparisons."""
    return [
        Comparison("replace_experts / KerasHub's dense bank", REPLACED, HUB, TARGET, at_most=True),
        Comparison("MixtureOfExperts / KerasHub's dense bank", OURS, HUB, TARGET, at_most=True),
        Comparison("MixtureOfExperts / its plain form", OURS, PLAIN),
        Comparison("KerasHub / KerasHub, the noise", HUB_AGAIN, HUB),
    ]


def _run(program: str, workload: Workload, report: Report) -> None:
    from experts import training

    training.run(program, workload, report)
