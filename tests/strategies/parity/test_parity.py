"""The parity law: under a strategy, everything equals one plain-Keras device."""

from __future__ import annotations

import functools
import pathlib

import pytest

import strategies
from tests.strategies.parity import (
    cases_data,
    cases_layers,
    cases_models,
    cases_optimizers,
    cases_training,
    table,
)
from tests.strategies.parity.harness import Case, Outcome, compare, execute

SECTIONS = {
    "Data": cases_data.CASES,
    "Models and losses": cases_models.CASES,
    "Optimizers": cases_optimizers.CASES,
    "Metrics and training options": cases_training.CASES,
    "Layers": cases_layers.CASES,
}
ALL = {case.name: case for cases in SECTIONS.values() for case in cases}


@functools.cache
def on_one_device(name: str) -> Outcome:
    return execute(ALL[name], None)


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("case", ALL.values(), ids=list(ALL))
def test_equals_one_device(case: Case, num_replicas: int, parity_table: table.Table) -> None:
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    difference = compare(on_one_device(case.name), execute(case, strategy))
    parity_table.record(case.name, num_replicas, difference)
    assert difference.largest <= case.tolerance, difference


def test_every_case_has_its_own_name() -> None:
    assert len(ALL) == sum(len(cases) for cases in SECTIONS.values())


def test_page_in_the_docs_shows_every_case_within_its_bound() -> None:
    page = (pathlib.Path(strategies.__file__).parent / "PARITY.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "e-" in line]
    shown = {row[0]: row[1:] for row in rows}
    assert sorted(shown) == sorted(ALL), "run `make parity`"
    for name, (*cells, bound) in shown.items():
        assert float(bound) == ALL[name].tolerance, name
        assert max(map(float, cells)) <= float(bound), name
