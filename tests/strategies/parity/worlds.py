"""Worlds of processes that run parity cases: each is started once, for many cases."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, horovodrun, python
from tests.strategies.parity.harness import Outcome
from tests.strategies.parity.table import World

#: With --parity-all a job runs up to 200 cases, on a machine that may be busy.
LIMIT_SECONDS = 3600
#: Identifies a world.
Key = TypeVar("Key", bound=Hashable)
WORKER = str(Path(__file__).with_name("worker.py"))


def run_in_processes(
    world: World, names: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Runs cases in all processes of a world, which write their outcomes to a folder; returns error messages."""
    name, num_processes, num_local = world
    own = {"PARITY_LOCAL_DEVICES": str(num_local), **(environment or {})}
    program = [WORKER, name, str(folder), *names]
    if name == "HorovodStrategy":
        programs = Programs(folder, [horovodrun(num_processes, program)], [own])
    else:
        environments = [own | one for one in cluster_environments(num_processes)]
        programs = Programs(folder, [python(*program)] * num_processes, environments)
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
    if all(code == 0 for code in codes):
        return ""
    errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
    late = f"(None: it took more than {LIMIT_SECONDS} s)"
    return f"{world}: exit codes {codes} {late}\n{errors}\n{programs.output()}"


def run_once(run: Callable[[Key], tuple[Path, str]]) -> Callable[[Key], Path]:
    """Returns a function that runs a world once, and returns its folder of outcomes, or fails the test.

    Args:
        run: returns the folder, and error messages.
    """
    finished = functools.cache(run)

    def checked(world: Key) -> Path:
        folder, failure = finished(world)
        if failure:
            pytest.fail(failure)
        return folder

    return checked


def outcome_of_all(world: World, number: int, folder: Path) -> Outcome:
    """Returns the outcome of a case, by its number, in a world; asserts that it is bit-identical on all ranks."""
    ranks = [pickle.loads((folder / f"{number}-{rank}.pickle").read_bytes()) for rank in range(world[1])]
    first: Outcome = ranks[0]
    for other in ranks[1:]:
        assert all(map(np.array_equal, first.weights, other.weights))
        assert all(map(np.array_equal, first.slots, other.slots))
        assert all(np.array_equal(first.logs[name], other.logs[name]) for name in first.logs)
    return first
