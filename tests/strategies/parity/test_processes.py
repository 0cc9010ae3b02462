"""The parity law across processes: each world of processes is started once and runs all cases."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Programs, cluster_environments, horovodrun
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import Case, Outcome, compare
from tests.strategies.parity.table import WORLDS, Table, World, title

LIMIT_SECONDS = 900
WORKER = str(Path(__file__).with_name("worker.py"))


@pytest.fixture(scope="module", params=[world for world in WORLDS if world[1] > 1], ids=title)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """A world and the folder in which its processes have left what each case gave."""
    world: World = request.param
    name, num_processes, num_local = world
    folder = tmp_path_factory.mktemp("parity in processes")
    environment = {"PARITY_LOCAL_DEVICES": str(num_local)}
    program = [WORKER, name, str(folder)]
    if name == "HorovodStrategy":
        programs = Programs(folder, [horovodrun(num_processes, program)], [environment])
    else:
        environments = [environment | one for one in cluster_environments(num_processes)]
        programs = Programs(folder, [[sys.executable, *program]] * num_processes, environments)
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
    if any(code != 0 for code in codes):
        errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
        pytest.fail(
            f"{world}: exit codes {codes} (None: it took more than {LIMIT_SECONDS} s)\n{errors}\n{programs.output()}"
        )
    return world, folder


def read(folder: Path, case: Case, rank: int) -> Outcome:
    outcome: Outcome = pickle.loads((folder / f"{list(ALL).index(case.name)}-{rank}.pickle").read_bytes())
    return outcome


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("case", ALL.values(), ids=list(ALL))
def test_equals_one_device(
    finished: tuple[World, Path], case: Case, on_one_device: Callable[[str], Outcome], parity_table: Table
) -> None:
    world, folder = finished
    first, *others = [read(folder, case, rank) for rank in range(world[1])]
    for other in others:
        assert all(map(np.array_equal, first.weights, other.weights))
        assert all(map(np.array_equal, first.slots, other.slots))
        assert all(np.array_equal(first.logs[name], other.logs[name]) for name in first.logs)
    difference = compare(on_one_device(case.name), first)
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference
