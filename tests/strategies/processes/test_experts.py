"""Starts `experts.py` in two processes, of a device or more each, and in four."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 420
MANY = [{"data": 2, "expert": 2}, {"expert": 4}, {"data": 4}]
BOTH = [{"expert": 2}, {"data": 2}]


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("engine", "num_ranks", "num_local", "axes"),
    [
        ("MultiWorkerMirroredStrategy", 2, 2, MANY[1:]),
        ("HorovodStrategy", 2, 1, BOTH[:1]),
        pytest.param("MultiWorkerMirroredStrategy", 2, 1, BOTH, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, MANY[:1], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 2, [{"data": 2, "expert": 4}], marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_experts_and_tables_across_processes(
    engine: str, num_ranks: int, num_local: int, axes: list[dict[str, int]], tmp_path: Path
) -> None:
    programs = matrix.started(engine, num_ranks, num_local, tmp_path, axes, suite="experts.py")
    matrix.assert_suite_passes(programs, num_ranks, LIMIT_SECONDS)
