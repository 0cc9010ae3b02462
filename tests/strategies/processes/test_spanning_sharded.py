"""Runs `spanning_sharded.py` in four processes: two replicas over two processes each."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900
AXES = [{"data": 2, "pipe": 2}, {"data": 2, "tensor": 2}]
# Checkpoints of the first mesh are tested in any case.
FILES_OF_STAGES = "test_trained_saved_and_gone_on and pipe"


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "engine",
    ["MultiWorkerMirroredStrategy", pytest.param("HorovodStrategy", marks=pytest.mark.parity_all)],
)
def test_weights_in_shards_where_a_replica_spans_processes(
    engine: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    options = [] if pytestconfig.getoption("--parity-all") else ["-k", f"not ({FILES_OF_STAGES})"]
    programs = matrix.started(engine, 4, 1, tmp_path, AXES, options, suite="spanning_sharded.py")
    matrix.assert_suite_passes(programs, 4, LIMIT_SECONDS)
