"""Runs `spanning_tensor.py` in several processes; more devices, and the other engine, with ``--parity-all``."""

from pathlib import Path

import pytest

from tests.strategies.processes import matrix

LIMIT_SECONDS = 900

#: Engine, processes, devices of each, mesh.
WORLDS = [
    pytest.param("MultiWorkerMirroredStrategy", 2, 1, {"tensor": 2}, id="one-each", marks=pytest.mark.parity_all),
    pytest.param("HorovodStrategy", 2, 2, {"tensor": 4}, id="two-shards-each", marks=pytest.mark.parity_all),
    pytest.param("HorovodStrategy", 2, 1, {"tensor": 2}, id="one-shard-each", marks=pytest.mark.parity_all),
    pytest.param("MultiWorkerMirroredStrategy", 2, 2, {"tensor": 4}, id="two-each", marks=pytest.mark.parity_all),
    pytest.param(
        "HorovodStrategy", 4, 1, {"data": 2, "tensor": 2}, id="two-replicas-horovod", marks=pytest.mark.parity_all
    ),
    pytest.param(
        "MultiWorkerMirroredStrategy",
        4,
        1,
        {"data": 2, "tensor": 2},
        id="two-replicas",
        marks=pytest.mark.parity_all,
    ),
]


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(("engine", "num_ranks", "num_local", "axes"), WORLDS)
def test_layers_whose_shards_belong_to_several_processes(
    engine: str, num_ranks: int, num_local: int, axes: dict[str, int], tmp_path: Path
) -> None:
    programs = matrix.started(engine, num_ranks, num_local, tmp_path, [axes], suite="spanning_tensor.py")
    matrix.assert_suite_passes(programs, num_ranks, LIMIT_SECONDS)
