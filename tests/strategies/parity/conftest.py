"""Collects what the parity tests measure; `--parity-table FILE` writes it as a page."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.strategies.parity.cases import ALL, SECTIONS
from tests.strategies.parity.harness import Outcome, execute
from tests.strategies.parity.table import Table


@pytest.fixture(scope="session")
def parity_table(request: pytest.FixtureRequest) -> Iterator[Table]:
    table = Table()
    yield table
    path = request.config.getoption("--parity-table")
    if path is not None:
        table.write(pathlib.Path(path), SECTIONS)


@pytest.fixture(scope="session")
def on_one_device() -> Callable[[str], Outcome]:
    """What a case, by its name, gives in plain Keras."""
    return functools.cache(lambda name: execute(ALL[name], None))
