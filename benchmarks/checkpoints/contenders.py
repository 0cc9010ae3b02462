"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

from harness.clusters import independent, one_core_each, tensorflow_environments, torch_environments
from harness.ratios import Comparison
from harness.workers import Contender, Report

PLAIN = "plain files, one for each rank"
WHOLE = "whole file, rank 0"
BLOCKING = "sharded"
STALL = "sharded, in the background: training waits"
WRITTEN = "sharded, in the background: until complete"
TORCH_BLOCKING = "torch, save"
TORCH_STALL = "torch, async_save: training waits"
TORCH_WRITTEN = "torch, async_save: until complete"

#: Of a blocking save's time, that for which a save in the background stops training.
TARGET_OF_STALL = 0.05
#: Bytes a second of a sharded save, of those of plain files: the ratio of times is to be at most its inverse.
TARGET_OF_PLAIN = 1 / 0.9
#: Of the time for which training waits in torch's save in the background.
TARGET_OF_TORCH = 1.0

#: The program in `checkpoints.saving`, by the contender's name.
_PROGRAMS = {PLAIN: "plain", WHOLE: "whole", BLOCKING: "sharded", STALL: "stall", WRITTEN: "written"}
#: The program of `checkpoints.torch_saving`.
_OF_TORCH = {TORCH_BLOCKING: "torch", TORCH_STALL: "torch stall", TORCH_WRITTEN: "torch written"}


def contenders(folder: Path, megabytes: int, torch_python: str | None) -> list[Contender]:
    """Returns all contenders, of two processes each; all save the same number of bytes.

    Args:
        folder: where they write.
        megabytes: the size of what they save.
        torch_python: the Python that runs those of torch; None to leave them out.
    """
    found = [
        Contender(
            name,
            functools.partial(_run, program, folder / program, megabytes),
            independent(2) if program == "plain" else tensorflow_environments(2),
            cores=one_core_each(2),
        )
        for name, program in _PROGRAMS.items()
    ]
    if torch_python is None:
        return found
    return found + [
        Contender(
            name,
            functools.partial(_run_torch, torch_python, program, folder / program, megabytes),
            torch_environments(2),
            cores=one_core_each(2),
        )
        for name, program in _OF_TORCH.items()
    ]


def comparisons(has_torch: bool) -> Sequence[Comparison]:
    """Returns the comparisons."""
    found = [
        Comparison("in the background, training waits / sharded", STALL, BLOCKING, TARGET_OF_STALL, at_most=True),
        Comparison("sharded / plain files", BLOCKING, PLAIN, TARGET_OF_PLAIN, at_most=True),
        Comparison("in the background, until complete / plain files", WRITTEN, PLAIN),
        Comparison("whole file / plain files", WHOLE, PLAIN),
    ]
    if not has_torch:
        return found
    return [
        *found,
        Comparison("training waits / in torch", STALL, TORCH_STALL, TARGET_OF_TORCH, at_most=True),
        Comparison("torch: async_save, training waits / save", TORCH_STALL, TORCH_BLOCKING),
        Comparison("sharded / torch, save", BLOCKING, TORCH_BLOCKING),
        Comparison("until complete / in torch", WRITTEN, TORCH_WRITTEN),
        Comparison("torch, save / plain files", TORCH_BLOCKING, PLAIN),
    ]


def torch_version(python: str) -> str:
    """Returns the version of torch of another Python.

    Raises:
        OSError, subprocess.CalledProcessError: it does not run, or has no torch.
    """
    command = [python, "-I", "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()


#: Combines the simultaneous measurements of a contender's processes: training waits for the slowest.
combine: Callable[[Sequence[float]], float] = max


def _run(program: str, folder: Path, megabytes: int, report: Report) -> None:
    from checkpoints import saving

    saving.PROGRAMS[program](folder, megabytes, report)


def _run_torch(python: str, program: str, folder: Path, megabytes: int, report: Report) -> None:
    # Not through `-m`: the other Python needs none of the packages here, and is not to find them.
    command = [python, "-I", str(Path(__file__).with_name("torch_saving.py")), program, str(folder), str(megabytes)]
    # It ends when its input does, with this process.
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Pipes, as asked for above.
        stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        while True:
            stdin.write("\n")
            stdin.flush()
            line = stdout.readline()
            if not line:
                raise RuntimeError(f"torch's process ended by itself, exit code {process.wait()}.")
            report(float(line))
