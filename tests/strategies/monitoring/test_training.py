"""The status of real trainings of two ranks: under our launcher, and under `horovodrun`, where rank 0 serves it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from strategies.monitoring.client import Client, ClientError
from strategies.monitoring.job_status import JobStatus
from tests.processes import Programs, free_ports, horovodrun, launcher

PROGRAM = str(Path(__file__).with_name("training.py"))
LIMIT_SECONDS = 150
TOKEN = "a token of the test"


def awaited(client: Client, programs: Programs) -> JobStatus:
    """Returns the status once both ranks train, and have saved."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        assert programs.running(), programs.output()
        assert time.monotonic() < deadline, programs.output()
        try:
            job = client.status()
        except ClientError:
            # The server does not run yet.
            time.sleep(0.1)
            continue
        if job.checkpoint and job.units_per_second and job.ranks[1].report and job.ranks[1].report.total_steps:
            return job
        time.sleep(0.1)


@pytest.mark.timeout(2 * LIMIT_SECONDS)
@pytest.mark.parametrize("engine", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
def test_a_training(engine: str, tmp_path: Path) -> None:
    [port] = free_ports(1)
    is_ours = engine == "MultiWorkerMirroredStrategy"
    start = launcher if is_ours else horovodrun
    settings = {"STRATEGIES_STATUS_PORT": str(port), "STRATEGIES_STATUS_TOKEN": TOKEN}
    with Programs(tmp_path, [start(2, [PROGRAM, engine, str(tmp_path)])], [settings]) as programs:
        client = Client(f"127.0.0.1:{port}", TOKEN)
        job = awaited(client, programs)
        assert (job.state, job.world_size, job.call, job.unit) == ("running", 2, "fit", "rows")
        assert (job.epochs, job.steps_per_epoch) == (100_000, 4)
        assert str(tmp_path / "checkpoints") in job.checkpoint
        for rank in job.ranks:
            assert rank.report is not None
            assert (rank.is_alive, rank.report.rank, rank.report.world_size) == (True, rank.rank, 2)
            assert (rank.report.memory_bytes or 0) > 2**26
        # Reports go on.
        later = client.status()
        while later.total_steps == job.total_steps:
            assert programs.running(), programs.output()
            later = client.status()
        trace = client.trace(3, LIMIT_SECONDS)
        assert dict(trace.errors) == {}
        assert dict(trace.events) == {0: "3 steps of rank 0", 1: "3 steps of rank 1"}
        with pytest.raises(ClientError, match="token"):
            Client(f"127.0.0.1:{port}").status()
        (tmp_path / "stop").touch()
        assert programs.wait(LIMIT_SECONDS) == [0], programs.output()
    output = programs.output()
    assert output.count("has trained") == 2, output
    assert output.count("status: http://") == 1, output
    assert TOKEN not in output
