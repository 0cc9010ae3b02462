"""Starts the suites in two processes, for each strategy of several processes."""

import sys
from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun

LIMIT_SECONDS = 280
WORKER = str(Path(__file__).with_name("worker.py"))


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
@pytest.mark.parametrize(("suite", "num_devices"), [("suite.py", 1), ("meshes.py", 2), ("meshes.py", 4)])
def test_the_suite_passes_on_both_ranks(suite: str, num_devices: int, strategy: str, tmp_path: Path) -> None:
    environment = {
        "SUITE_STRATEGY": strategy,
        "SUITE_FOLDER": str(tmp_path / "shared by ranks"),
        "SUITE_DEVICES": str(num_devices),
    }
    if strategy == "HorovodStrategy":
        programs = Programs(tmp_path, [horovodrun(2, [WORKER, suite])], [environment])
    else:
        programs = Programs(
            tmp_path, [[sys.executable, WORKER, suite]] * 2, [environment | e for e in cluster_environments(2)]
        )
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=20000)
    assert all(code == 0 for code in codes), output
    assert output.count(" passed") >= 2, output
