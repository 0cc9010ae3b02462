"""Runs `spanning_presets.py` and `spanning_presets_stages.py` in two processes."""

from pathlib import Path

import pytest

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

from tests.strategies.processes import matrix

LIMIT_SECONDS = 600


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "strategy", ["MultiWorkerMirroredStrategy", pytest.param("HorovodStrategy", marks=pytest.mark.parity_all)]
)
def test_presets_of_two_processes(strategy: str, tmp_path: Path) -> None:
    programs = matrix.started(strategy, 2, 1, tmp_path, suite="spanning_presets.py")
    matrix.assert_suite_passes(programs, 2, LIMIT_SECONDS)


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parity_all
@pytest.mark.parametrize("strategy", matrix.ENGINES)
def test_presets_in_split_stages(strategy: str, tmp_path: Path) -> None:
    programs = matrix.started(strategy, 2, 2, tmp_path, suite="spanning_presets_stages.py")
    matrix.assert_suite_passes(programs, 2, LIMIT_SECONDS)
