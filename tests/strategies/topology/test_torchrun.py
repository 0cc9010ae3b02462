"""strategies/topology/torchrun.py: what torchrun sets is refused, and nothing else."""

from __future__ import annotations

import json

import pytest

from strategies.topology.cluster import Cluster

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_several_processes_of_torchrun_are_refused() -> None:
    with pytest.raises(ValueError, match=r"python -m strategies\.launch.*RANK=1, WORLD_SIZE=2"):
        Cluster.from_environment(TORCHRUN)


@pytest.mark.parametrize("changes", [{"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": ""}, {"RANK": "?"}])
def test_one_process_is_a_job_of_its_own(changes: dict[str, str]) -> None:
    assert Cluster.from_environment(TORCHRUN | changes) == Cluster()


def test_a_size_alone_is_not_torchruns() -> None:
    assert Cluster.from_environment({"RANK": "1", "WORLD_SIZE": "2"}) == Cluster()


def test_our_launcher_sets_them_beside_tf_config() -> None:
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    assert Cluster.from_environment(TORCHRUN | {"TF_CONFIG": json.dumps(config)}).rank == 1
