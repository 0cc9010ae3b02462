"""Runs the programs of docs/coming_from, and reads the losses that they print."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.processes import Programs, horovodrun, launcher, python

PAGES = Path(__file__).parents[3] / "docs" / "coming_from"
PROGRAMS = PAGES / "programs"
LIMIT_SECONDS = 250
#: Programs print six decimals; an epoch's mean is taken by Keras or by numpy.
TOLERANCE = 2e-6
#: Other frameworks add in another order.
OTHER_FRAMEWORK = 1e-5
#: Names, separated as in PATH, of further interpreters in which originals may run: with torch, JAX, Ray or Spark.
INTERPRETERS = "KERAS_STRATEGIES_TESTS_PYTHONS"


def losses(text: str) -> list[float]:
    """Returns the numbers of the one line of a program's output, or of a page, that has losses."""
    [line] = set(re.findall(r"\bloss((?: -?\d+\.\d+){3})\b", text))
    return [float(number) for number in line.split()]


@functools.cache
def expected() -> list[float]:
    """Returns the losses that docs/coming_from/index.md says all programs print."""
    return losses((PAGES / "index.md").read_text())


def same(output: str, wanted: Sequence[float] | None = None, tolerance: float = TOLERANCE) -> bool:
    """Returns True if a program has printed the losses wanted, or those of index.md."""
    pairs = zip(losses(output), expected() if wanted is None else wanted, strict=True)
    return max(abs(one - other) for one, other in pairs) <= tolerance


def output(folder: Path, command: Sequence[str], *, fails: bool = False) -> str:
    """Returns all that a command prints; kills everything that it has started."""
    codes, printed = _finished(folder, [command], [{}])
    assert (codes == [0]) is not fails, printed
    return printed


def outputs(folder: Path, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> str:
    """Returns all that commands print that run at the same time, each with variables of its own."""
    codes, printed = _finished(folder, commands, environments)
    assert codes == [0] * len(commands), printed
    return printed


def _finished(
    folder: Path, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]
) -> tuple[list[int | None], str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    with Programs(folder, commands, [{**quiet, **each} for each in environments]) as programs:
        codes = programs.wait(LIMIT_SECONDS)
        return codes, programs.output(limit=100_000)


def on_one(name: str) -> list[str]:
    """Returns the command that runs a program of the pages in one process."""
    return python(str(PROGRAMS / name))


def by_launcher(name: str) -> list[str]:
    """Returns the command that runs a program of the pages in two processes, by our launcher."""
    return launcher(2, [str(PROGRAMS / name)])


def by_horovodrun(name: str) -> list[str]:
    """Returns the command that runs a program of the pages in two processes, by horovodrun."""
    return horovodrun(2, [str(PROGRAMS / name)])


def changed(folder: Path, name: str, changes: Mapping[str, str]) -> str:
    """Writes a program of the pages with some of its text replaced; returns the path of the file."""
    text = (PROGRAMS / name).read_text()
    for before, after in changes.items():
        assert before in text, f"{name} has no {before!r}"
        text = text.replace(before, after)
    path = folder / name
    path.write_text(text)
    return str(path)


def interpreter_with(*modules: str) -> str:
    """Returns an interpreter that has modules: this one, or one that `INTERPRETERS` names; skips the test without."""
    if all(importlib.util.find_spec(module) for module in modules):
        return sys.executable
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules})))"
    for other in filter(None, os.environ.get(INTERPRETERS, "").split(os.pathsep)):
        if subprocess.run([other, "-c", code], check=False, timeout=60).returncode == 0:
            return other
    pytest.skip(f"{', '.join(modules)}: not installed here, nor in an interpreter of {INTERPRETERS}")
