"""The parity law on the devices of one process: under a strategy, everything equals one plain-Keras device."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

import strategies
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.harness import Case, Outcome, compare, execute
from tests.strategies.parity.selection import parametrize
from tests.strategies.parity.table import WORLDS, Table, World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, [world for world in WORLDS if world[1] == 1])


def test_equals_one_device(
    case: Case, world: World, on_one_device: Callable[[str], Outcome], parity_table: Table
) -> None:
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(world[2])])
    difference = compare(on_one_device(case.name), execute(case, strategy))
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference


def test_every_case_has_its_own_name() -> None:
    assert len(ALL) == sum(len(cases) for cases in SECTIONS.values())


def test_page_in_the_docs_shows_every_case_within_its_bound() -> None:
    page = (pathlib.Path(strategies.__file__).parent / "PARITY.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "e-" in line]
    shown = {row[0]: row[1:] for row in rows}
    assert sorted(shown) == sorted(ALL), "run `make parity`"
    for name, (*cells, bound) in shown.items():
        assert len(cells) == len(WORLDS), "run `make parity`"
        assert float(bound) == ALL[name].tolerance, name
        measured = [float(number) for cell in cells if cell != "-" for number in cell.split(" / ")]
        # The worlds of two replicas, and the devices of one process, are measured for every case.
        assert len(measured) >= 8, name
        assert max(measured) <= float(bound), name
