"""Starts `experts.py` in two processes, and in four."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 420
MANY = [{"data": 2, "expert": 2}, {"expert": 4}, {"data": 4}]
BOTH = [{"expert": 2}, {"data": 2}]
# Parts of each expert in one process, and in two.
WITH_TENSOR = {"expert": 2, "tensor": 2}


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("engine", "num_ranks", "num_local", "axes"),
    [
        ("MultiWorkerMirroredStrategy", 2, 1, BOTH),
        ("HorovodStrategy", 2, 1, BOTH[:1]),
        ("MultiWorkerMirroredStrategy", 2, 2, [WITH_TENSOR]),
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, [{"data": 2, "tensor": 2}], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 1, [{"tensor": 2}], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 1, [WITH_TENSOR], marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", 4, 1, [WITH_TENSOR], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, MANY[:1], marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_experts_and_tables_across_processes(
    engine: str, num_ranks: int, num_local: int, axes: list[dict[str, int]], tmp_path: Path
) -> None:
    programs = matrix.started(engine, num_ranks, num_local, tmp_path, axes, suite="experts.py")
    matrix.assert_suite_passes(programs, num_ranks, LIMIT_SECONDS)
