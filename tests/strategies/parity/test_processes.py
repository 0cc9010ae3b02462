"""The parity law across processes: each world of processes is started once and runs all cases."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, horovodrun
from tests.releases import is_there
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import Case, Outcome, compare
from tests.strategies.parity.selection import cases_of, parametrize
from tests.strategies.parity.table import WORLDS, Table, World

LIMIT_SECONDS = 900
WORKER = str(Path(__file__).with_name("worker.py"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, [world for world in WORLDS if world[1] > 1])


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[World], Path]:
    """Runs a world, once; returns the folder in which its processes have left what each case gave."""

    @functools.cache
    def finished(world: World) -> tuple[Path, str]:
        name, num_processes, num_local = world
        folder = tmp_path_factory.mktemp("parity in processes")
        environment = {"PARITY_LOCAL_DEVICES": str(num_local)}
        program = [WORKER, name, str(folder), *filter(is_there, cases_of(world, request.config))]
        if name == "HorovodStrategy":
            programs = Programs(folder, [horovodrun(num_processes, program)], [environment])
        else:
            environments = [environment | one for one in cluster_environments(num_processes)]
            programs = Programs(folder, [[sys.executable, *program]] * num_processes, environments)
        with programs:
            codes = programs.wait(LIMIT_SECONDS)
        if all(code == 0 for code in codes):
            return folder, ""
        errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
        late = f"(None: it took more than {LIMIT_SECONDS} s)"
        return folder, f"{world}: exit codes {codes} {late}\n{errors}\n{programs.output()}"

    def checked(world: World) -> Path:
        folder, failure = finished(world)
        if failure:
            pytest.fail(failure)
        return folder

    return checked


def read(folder: Path, case: Case, rank: int) -> Outcome:
    outcome: Outcome = pickle.loads((folder / f"{list(ALL).index(case.name)}-{rank}.pickle").read_bytes())
    return outcome


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_equals_one_device(
    world: World,
    case: Case,
    run: Callable[[World], Path],
    on_one_device: Callable[[str], Outcome],
    parity_table: Table,
) -> None:
    folder = run(world)
    first, *others = [read(folder, case, rank) for rank in range(world[1])]
    for other in others:
        assert all(map(np.array_equal, first.weights, other.weights))
        assert all(map(np.array_equal, first.slots, other.slots))
        assert all(np.array_equal(first.logs[name], other.logs[name]) for name in first.logs)
    difference = compare(on_one_device(case.name), first)
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference
