"""Starts `spanning_pipe.py` in two processes."""

import sys
from pathlib import Path

import pytest

from tests.processes import Programs, cluster_environments, horovodrun

LIMIT_SECONDS = 480
WORKER = str(Path(__file__).with_name("worker.py"))


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
def test_pipelines_over_two_processes(strategy: str, num_devices: int, tmp_path: Path) -> None:
    environment = {"SUITE_STRATEGY": strategy, "SUITE_DEVICES": str(num_devices)}
    program = [WORKER, "spanning_pipe.py"]
    if strategy == "HorovodStrategy":
        programs = Programs(tmp_path, [horovodrun(2, program)], [environment])
    else:
        own = [environment | each for each in cluster_environments(2)]
        programs = Programs(tmp_path, [[sys.executable, *program]] * 2, own)
    with programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=20000)
    assert all(code == 0 for code in codes), output
    assert output.count(" passed") >= 2, output
