"""A command of deploy/ as a user starts it on one machine: its output, its loss curve, the processes of its ranks."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

import psutil
import pytest

from tests.processes import ENVIRONMENT, ROOT, marked, marked_after

LIMIT_SECONDS = 400.0
#: All processes of a run have this variable; its value is the folder of the run.
MARK = "KERAS_STRATEGIES_DEPLOY_TEST"


#: A resumed epoch adds its losses in another order: equal is equal to float32's rounding.
TOLERANCE = 1e-6


def curve(path: Path) -> list[dict[str, float]]:
    """Returns losses and metrics of the epochs in a `history.csv`, without the speeds; [] if there is no file."""
    names = ("loss", "accuracy", "val_loss", "val_accuracy")
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{name: float(line[name]) for name in names} for line in csv.DictReader(file)]


def assert_equal(left: Sequence[Mapping[str, float]], right: Sequence[Mapping[str, float]]) -> None:
    """Asserts that two curves are equal, each number to `TOLERANCE` relatively."""
    assert [dict(epoch) for epoch in left] == [pytest.approx(dict(epoch), rel=TOLERANCE, abs=0) for epoch in right]


def leave_out(reason: str) -> NoReturn:
    """Skips a test that this machine cannot run; `make deploy-tests` promises to run it, so there it fails."""
    if os.environ.get("DEPLOY_TESTS") == "all":
        pytest.fail(reason)
    pytest.skip(reason)


def python_with(environment: str) -> str:
    """Returns the interpreter of the virtual environment `<this one>-<environment>`, or leaves the test out."""
    python = Path(f"{sys.prefix}-{environment}", "bin", "python")
    if not python.exists():
        leave_out(f"there is no {python}: make {environment}-environment VENV={sys.prefix}")
    return str(python)


def wait(what: str, holds: Callable[[], object], shown: Callable[[], object]) -> float:
    """Waits until `holds`, and returns the seconds it took; after `LIMIT_SECONDS` raises what `shown` returns."""
    start = time.monotonic()
    while not holds():
        if (waited := time.monotonic() - start) > LIMIT_SECONDS:
            raise TimeoutError(f"{what}: not after {waited:.0f} s: {shown()}")
        time.sleep(0.1)
    return time.monotonic() - start


class Run:
    """A context manager with a running command; leaving it kills what is left, and fails if anything is.

    Args:
        folder: gets the output, and is the mark of the processes.
        command: the command, run in the root of the repository.
        environment: variables besides those of this process.
    """

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.folder, self._command, self._environment = folder, command, environment
        self._log = folder / "log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, **self._environment, MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self.process.kill()
        self.process.wait(60)
        left = marked_after(MARK, str(self.folder), 0.0 if error else 10.0)
        lines = [f"{process.pid} {process.name()}" for process in left]
        for process in left:
            process.kill()
        if error is None and lines:
            raise AssertionError(f"still running after the end: {lines}")

    @property
    def log(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, what: str, holds: Callable[[], object]) -> float:
        """Waits until `holds`, and returns the seconds it took."""
        return wait(what, holds, lambda: self.log[-6000:])

    def wait_for_end(self) -> int:
        """Waits for the end of the command, and returns its exit code."""
        self.wait_for("the end", lambda: self.process.poll() is not None)
        return int(self.process.returncode)

    def rank_process(self, has: Callable[[psutil.Process], bool]) -> psutil.Process:
        """Returns the one process of this run for which `has` is true."""
        [found] = [process for process in marked(MARK, str(self.folder)) if has(process)]
        return found
