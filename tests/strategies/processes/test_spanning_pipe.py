"""Runs `spanning_pipe.py` in two processes."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("strategy", matrix.ENGINES)
def test_pipelines_over_two_processes(strategy: str, num_devices: int, tmp_path: Path) -> None:
    programs = matrix.started(strategy, 2, num_devices, tmp_path, suite="spanning_pipe.py")
    matrix.assert_suite_passes(programs, 2, LIMIT_SECONDS)
