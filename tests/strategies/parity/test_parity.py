"""The parity law on the devices of one process: under a strategy, everything equals one plain-Keras device."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import keras_ext
import strategies
from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.cases_programs import FUNCTIONAL, WITH_BATCH_NORMALIZATION
from tests.strategies.parity.harness import TOLERANCE, Case, Outcome, compare, execute
from tests.strategies.parity.selection import PROGRAMS_IN_PARTS, parametrize
from tests.strategies.parity.table import WORLDS, Table, World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, [world for world in WORLDS if world[1] == 1])
    if "program" in metafunc.fixturenames:
        every = [(program, parts) for program in FUNCTIONAL for parts in ("split", "staged")]
        chosen = every if metafunc.config.getoption("--parity-all") else PROGRAMS_IN_PARTS
        metafunc.parametrize(("program", "parts"), chosen)


def test_equals_one_device(
    case: Case, world: World, on_one_device: Callable[[str], Outcome], parity_table: Table
) -> None:
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(world[2])])
    difference = compare(on_one_device(case.name), execute(case, strategy))
    parity_table.record(case.name, world, difference)
    assert difference.largest <= case.tolerance, difference


def placed(program: str, parts: str) -> Callable[[Any], Any]:
    if parts == "split":
        return keras_ext.parallelize
    # In stages, BatchNormalization normalizes micro-batches.
    num_microbatches = 1 if program in WITH_BATCH_NORMALIZATION else 2
    return functools.partial(keras_ext.PipelineModel, num_microbatches=num_microbatches)


def test_programs_in_parts_equal_one_device(program: str, parts: str, on_one_device: Callable[[str], Outcome]) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor" if parts == "split" else "pipe": 2})
    case = dataclasses.replace(ALL[program], make=functools.partial(FUNCTIONAL[program], placed(program, parts)))
    difference = compare(on_one_device(program), execute(case, strategy))
    assert difference.largest <= TOLERANCE, difference


def test_every_case_has_its_own_name() -> None:
    assert len(ALL) == sum(len(cases) for cases in SECTIONS.values())


def test_page_in_the_docs_shows_every_case_within_its_bound() -> None:
    page = (pathlib.Path(strategies.__file__).parents[1] / "docs" / "numbers" / "parity.md").read_text()
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
