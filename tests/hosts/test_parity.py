"""Training over several hosts gives the weights of one device, with each launcher."""

from pathlib import Path

import pytest

from tests.hosts.jobs import ENGINES, Job
from tests.hosts.network import Hosts
from tests.strategies.parity.harness import TOLERANCE, Outcome, compare

LIMIT_SECONDS = 150.0
MULTI_WORKER, HOROVOD = ENGINES
RESEMBLING = pytest.mark.parity_all
# Pipelines of two stages, each stage on its own host.
MESH = ("--mesh", "data=2,pipe=2")


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("engine", "num_hosts", "arguments"),
    [
        # `test_a_job_goes_on_without_a_host` compares the launcher's weights without the flag.
        pytest.param(MULTI_WORKER, 2, (), id="2-launcher", marks=RESEMBLING),
        pytest.param(HOROVOD, 2, (), id="2-horovodrun"),
        pytest.param(MULTI_WORKER, 4, (), id="4-launcher", marks=RESEMBLING),
        pytest.param(MULTI_WORKER, 4, MESH, id="4-launcher-mesh", marks=RESEMBLING),
        pytest.param(HOROVOD, 4, (), id="4-horovodrun", marks=RESEMBLING),
        pytest.param(HOROVOD, 4, MESH, id="4-horovodrun-mesh", marks=RESEMBLING),
    ],
)
def test_weights_are_those_of_one_device(
    engine: str, num_hosts: int, arguments: tuple[str, ...], hosts: Hosts, folder: Path, on_plain_keras: Outcome
) -> None:
    job = Job(hosts, engine, num_hosts, folder, arguments)
    ended = job.wait(range(num_hosts), LIMIT_SECONDS)
    assert None not in ended.values(), job.output()
    assert set(job.codes(range(num_hosts))) == {0}, job.output()
    difference = compare(on_plain_keras, job.outcome())
    assert difference.largest <= TOLERANCE, difference
