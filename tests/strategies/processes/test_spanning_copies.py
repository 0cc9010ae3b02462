"""Runs `spanning_copies.py` in six processes: three replicas over two processes each."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900


@pytest.mark.parity_all
@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("axes", [{"data": 3, "pipe": 2}, {"data": 3, "tensor": 2}], ids=str)
@pytest.mark.parametrize("engine", matrix.ENGINES)
def test_copies_of_weights_in_three_replicas(engine: str, axes: dict[str, int], tmp_path: Path) -> None:
    programs = matrix.started(engine, 6, 1, tmp_path, [axes], suite="spanning_copies.py")
    matrix.assert_suite_passes(programs, 6, LIMIT_SECONDS)
