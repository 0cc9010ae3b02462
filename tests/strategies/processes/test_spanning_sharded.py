"""Runs `spanning_sharded.py` in four processes: two replicas over two processes each."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900
AXES = [{"data": 2, "pipe": 2}, {"data": 2, "tensor": 2}]


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "engine",
    ["MultiWorkerMirroredStrategy", pytest.param("HorovodStrategy", marks=pytest.mark.parity_all)],
)
def test_weights_in_shards_where_a_replica_spans_processes(engine: str, flags: list[str], tmp_path: Path) -> None:
    programs = matrix.started(engine, 4, 1, tmp_path, AXES, flags, suite="spanning_sharded.py")
    matrix.assert_suite_passes(programs, 4, LIMIT_SECONDS)
