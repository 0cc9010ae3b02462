"""Runs the suites in two processes, for each multi-process strategy."""

from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun, python
from tests.strategies.processes import matrix

LIMIT_SECONDS = 900
WORKER = str(Path(__file__).with_name("worker.py"))

_RANKS = "-ptests.strategies.processes.ranks"

#: Arguments of the worker, and devices of each process. Each suite fits into the limit beside other tests.
SUITES = [
    pytest.param((_RANKS, "suite_data.py", "suite_first_batches.py", "suite_refusals.py"), 1, id="data"),
    pytest.param((_RANKS, "suite_files.py"), 1, id="files"),
    pytest.param((_RANKS, "suite_programs.py", "suite_exchanges.py"), 1, id="programs"),
    pytest.param((_RANKS, "suite_readers.py"), 1, id="readers"),
    pytest.param(("spanning_optimizers.py",), 1, id="spanning"),
    pytest.param(("spanning_refusals.py",), 1, id="spanning-refusals"),
    pytest.param(("spanning_files.py",), 1, id="spanning-files"),
    pytest.param(("spanning_generation.py",), 1, id="spanning-generation"),
    pytest.param(("sharded_checkpoints.py",), 1, id="sharded-checkpoints"),
    pytest.param(("comparisons.py",), 1, id="comparisons"),
    pytest.param(("meshes.py",), 2, id="meshes-2"),
    pytest.param(("meshes.py",), 4, id="meshes-4"),
]


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
@pytest.mark.parametrize(("arguments", "num_devices"), SUITES)
def test_they_pass_on_both_ranks(
    arguments: tuple[str, ...], num_devices: int, strategy: str, flags: list[str], tmp_path: Path
) -> None:
    environment = {
        "SUITE_STRATEGY": strategy,
        "SUITE_FOLDER": str(tmp_path / "shared by ranks"),
        "SUITE_DEVICES": str(num_devices),
    }
    if strategy == "HorovodStrategy":
        programs = Programs(tmp_path, [horovodrun(2, [WORKER, *arguments, *flags])], [environment])
    else:
        programs = Programs(
            tmp_path, [python(WORKER, *arguments, *flags)] * 2, [environment | e for e in cluster_environments(2)]
        )
    matrix.assert_suite_passes(programs, 2, LIMIT_SECONDS)
