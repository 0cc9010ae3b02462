"""Runs `experts.py` in two processes, of one device or more each, and in four."""

from pathlib import Path

import numpy as np
import pytest

from tests.keras_ext.expert import clicks
from tests.strategies.processes import matrix

LIMIT_SECONDS = 900
MANY = [{"data": 2, "expert": 2}, {"expert": 4}, {"data": 4}]
BOTH = [{"expert": 2}, {"data": 2}]
# Replicas that span processes and share experts with each other.
SPANNING = [{"expert": 2, "pipe": 2}, {"expert": 2, "tensor": 2}]
# Shards of each expert in one process, and in two.
WITH_TENSOR = SPANNING[1]
# For four processes with two devices each.
WIDE = [{"expert": 2, "pipe": 4}]


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("engine", "num_ranks", "num_local", "axes"),
    [
        ("MultiWorkerMirroredStrategy", 2, 2, MANY[1:2]),
        # Shards of each expert in one process are tested there, and experts of replicas in two processes above.
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, [WITH_TENSOR], marks=pytest.mark.parity_all),
        ("HorovodStrategy", 2, 1, BOTH[:1]),
        pytest.param("MultiWorkerMirroredStrategy", 2, 1, BOTH, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 1, [{"tensor": 2}], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, [{"data": 2, "tensor": 2}], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", 4, 1, MANY, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 2, 2, MANY[::2], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 2, [{"data": 2, "expert": 4}], marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 1, SPANNING, marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", 4, 1, SPANNING, marks=pytest.mark.parity_all),
        pytest.param("MultiWorkerMirroredStrategy", 4, 2, WIDE, marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_experts_and_tables_across_processes(
    engine: str, num_ranks: int, num_local: int, axes: list[dict[str, int]], tmp_path: Path
) -> None:
    # Plain Keras runs once, and not on each rank.
    shared = tmp_path / "shared by ranks"
    shared.mkdir()
    for optimizer in {each for mesh in axes for each in clicks.optimizers_of(mesh)}:
        np.savez(shared / f"{optimizer}.npz", *clicks.plain(optimizer))
    # Files are written by the same code over both engines.
    options = ["-k", "numbers"] if (engine, num_ranks) == ("HorovodStrategy", 2) else []
    programs = matrix.started(engine, num_ranks, num_local, tmp_path, axes, options, suite="experts.py")
    matrix.assert_suite_passes(programs, num_ranks, LIMIT_SECONDS)
