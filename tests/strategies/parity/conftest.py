"""Collects the measurements of the parity tests; `--parity-table FILE` writes them as a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.strategies.parity.cases import SECTIONS
from tests.strategies.parity.table import Table


@pytest.fixture(scope="session")
def parity_table(request: pytest.FixtureRequest) -> Iterator[Table]:
    table = Table()
    yield table
    path = request.config.getoption("--parity-table")
    if path is not None:
        table.write(pathlib.Path(path), SECTIONS)
