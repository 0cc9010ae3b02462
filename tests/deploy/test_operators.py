"""Host files of the MPI operator and of the Trainer, as Horovod's own parsers read them."""

import subprocess
from pathlib import Path

import pytest

from tests import platforms


@pytest.mark.parametrize("slots", [1, 4])
def test_horovodrun_reads_the_hostfile(slots: int, tmp_path: Path) -> None:
    hosts = pytest.importorskip("horovod.runner.common.util.hosts")
    path = tmp_path / "hostfile"
    path.write_text(platforms.mpi_job_hostfile(2, slots))
    listed = hosts.parse_host_files(str(path))
    assert listed == ",".join(f"{platforms.mpi_job_worker(i)}:{slots}" for i in range(2))
    places = hosts.get_host_assignments(hosts.parse_hosts(listed), 2 * slots)
    assert [(each.hostname, each.rank, each.local_size) for each in places] == [
        (platforms.mpi_job_worker(i // slots), i, slots) for i in range(2 * slots)
    ]


def test_elastic_horovod_discovers_the_workers(tmp_path: Path) -> None:
    """The script prints names without slots: horovodrun needs --slots-per-host beside it."""
    path = tmp_path / "discover_hosts.sh"
    path.write_text(platforms.mpi_job_discovery(2))
    path.chmod(0o555)
    printed = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [platforms.mpi_job_worker(i) for i in range(2)]
