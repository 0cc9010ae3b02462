"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools

from harness.clusters import free_ports, one_core_each, tensorflow_environments
from harness.ratios import Comparison
from harness.workers import Contender, Report

WATCHED, ALONE, AGAIN = "watched", "not watched", "not watched, once more"
COMPARISONS = (
    Comparison("watched / not watched", WATCHED, ALONE, 1.01, at_most=True),
    Comparison("not watched, once more / not watched", AGAIN, ALONE),
)


def contenders(num_steps: int) -> tuple[list[Contender], int]:
    """Returns the contenders, of two processes each, and the port of the status that is watched."""
    [port] = free_ports(1)
    # The third shows how much two measurements of the same differ.
    variables = {ALONE: {}, WATCHED: {"STRATEGIES_STATUS_PORT": str(port)}, AGAIN: {}}
    made = [
        Contender(
            name,
            functools.partial(_run, num_steps),
            tuple({**each, **own} for each in tensorflow_environments(2)),
            cores=one_core_each(2),
            # The threads of one contender do not run while another one is measured.
            freezes=True,
        )
        for name, own in variables.items()
    ]
    return made, port


def _run(num_steps: int, report: Report) -> None:
    # TensorFlow starts only here, in the contender's process.
    from watching.training import train

    train(num_steps, report)
