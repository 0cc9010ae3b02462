"""The parity law across processes: each world of processes is started once and runs all its cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.releases import is_there
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import Case, Outcome, compare
from tests.strategies.parity.selection import cases_of, parametrize
from tests.strategies.parity.table import WORLDS, Table, World
from tests.strategies.parity.worlds import LIMIT_SECONDS, outcome_of_all, run_in_processes, run_once


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, [world for world in WORLDS if world[1] > 1])


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[World], Path]:
    """Returns a function that runs a world, once, and returns the folder with its processes' outcomes."""

    def finished(world: World) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("parity in processes")
        return folder, run_in_processes(world, [*filter(is_there, cases_of(world, request.config))], folder)

    return run_once(finished)


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_equals_one_device(
    world: World,
    case: Case,
    run: Callable[[World], Path],
    on_one_device: Callable[[str], Outcome],
    parity_table: Table,
) -> None:
    outcome = outcome_of_all(world, list(ALL).index(case.name), run(world))
    difference = compare(on_one_device(case.name), outcome)
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference
