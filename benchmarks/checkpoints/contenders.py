"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.clusters import independent, one_core_each, tensorflow_environments
from harness.ratios import Comparison
from harness.workers import Contender, Report

PLAIN = "plain files, one for each rank"
WHOLE = "whole file, rank 0"
BLOCKING = "sharded"
STALL = "sharded, in the background: training waits"
WRITTEN = "sharded, in the background: until complete"

#: Of a blocking save's time, that for which a save in the background stops training.
TARGET_OF_STALL = 0.05
#: Bytes a second of a sharded save, of those of plain files: the ratio of times is to be at most its inverse.
TARGET_OF_PLAIN = 1 / 0.9

#: The program in `checkpoints.saving`, by the contender's name.
_PROGRAMS = {PLAIN: "plain", WHOLE: "whole", BLOCKING: "sharded", STALL: "stall", WRITTEN: "written"}


def contenders(folder: Path, megabytes: int) -> list[Contender]:
    """Returns all contenders, of two processes each; all save the same number of bytes."""
    return [
        Contender(
            name,
            functools.partial(_run, program, folder / program, megabytes),
            independent(2) if program == "plain" else tensorflow_environments(2),
            cores=one_core_each(2),
        )
        for name, program in _PROGRAMS.items()
    ]


def comparisons() -> Sequence[Comparison]:
    """Returns the comparisons."""
    return [
        Comparison("in the background, training waits / sharded", STALL, BLOCKING, TARGET_OF_STALL, at_most=True),
        Comparison("sharded / plain files", BLOCKING, PLAIN, TARGET_OF_PLAIN, at_most=True),
        Comparison("in the background, until complete / plain files", WRITTEN, PLAIN),
        Comparison("whole file / plain files", WHOLE, PLAIN),
    ]


#: Combines the simultaneous measurements of a contender's processes: training waits for the slowest.
combine: Callable[[Sequence[float]], float] = max


def _run(program: str, folder: Path, megabytes: int, report: Report) -> None:
    from checkpoints import saving

    saving.PROGRAMS[program](folder, megabytes, report)
