"""The variables that Slurm 22.05 and Open MPI 4.1 set, recorded from their own runs, and the ranks read from them."""

from __future__ import annotations

import pytest

from strategies.topology.cluster import Cluster

#: A job of two nodes with two tasks each, inside the batch script.
SLURM_BATCH = {
    "SLURMD_NODENAME": "host1",
    "SLURM_CLUSTER_NAME": "throwaway",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOBID": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "host[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "host[1-2]",
    "SLURM_NODE_ALIASES": "(null)",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_TOPOLOGY_ADDR": "host1",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
}
#: Rank 3 of `srun` in that script.
SLURM_STEP = SLURM_BATCH | {
    "SLURMD_NODENAME": "host2",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_GTIDS": "2,3",
    "SLURM_LAUNCH_NODE_IPADDR": "10.99.0.2",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "host[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
#: Rank 2 of `srun -n3`, the second step of that script.
SLURM_THREE = SLURM_STEP | {
    "SLURM_GTIDS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NPROCS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEPID": "1",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}
#: Rank 1 of `mpirun -np 2` on one machine.
OPEN_MPI = {
    "OMPI_APP_CTX_NUM_PROCS": "2",
    "OMPI_COMMAND": "env",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_FIRST_RANKS": "0",
    "OMPI_NUM_APP_CTX": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_HOSTNAME": "host",
    "PMIX_RANK": "1",
}
#: Rank 1 of `mpirun -np 2 --map-by node` in the batch script of a Slurm job: Slurm's variables are those of a step of
#: one task, with which mpirun has started its daemon on the other node.
OPEN_MPI_IN_SLURM = SLURM_BATCH | {
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "SLURM_STEPID": "2",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "host2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}


def _hosts(cluster: Cluster) -> list[str]:
    return [address.partition(":")[0] for address in cluster.addresses]


@pytest.mark.parametrize(
    ("environment", "expected", "hosts"),
    [
        (SLURM_STEP, (3, 4, 1, 2, 1), ["host1", "host1", "host2", "host2"]),
        (SLURM_THREE, (2, 3, 0, 1, 1), ["host1", "host1", "host2"]),
        (OPEN_MPI, (1, 2, 1, 2, 0), []),
        (OPEN_MPI_IN_SLURM, (1, 2, 0, 1, 1), []),
    ],
)
def test_ranks(environment: dict[str, str], expected: tuple[int, ...], hosts: list[str]) -> None:
    cluster = Cluster.from_environment(environment)
    assert (
        cluster.rank,
        cluster.world_size,
        cluster.local_rank,
        cluster.local_size,
        cluster.node_rank,
    ) == expected
    assert _hosts(cluster) == hosts
    assert len(set(cluster.addresses)) == len(hosts)


def test_a_batch_script_without_srun_is_refused() -> None:
    with pytest.raises(ValueError, match="not started by srun"):
        Cluster.from_environment(SLURM_BATCH)


def test_all_ranks_of_a_step_read_the_same_addresses() -> None:
    ranks = [
        Cluster.from_environment(
            SLURM_STEP | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r % 2), "SLURM_NODEID": str(r // 2)}
        )
        for r in range(4)
    ]
    assert len({cluster.addresses for cluster in ranks}) == 1


def test_jobs_and_steps_on_one_node_use_different_ports() -> None:
    ports: set[str] = set()
    for job, step in ((1, 0), (2, 0), (2, 1), (3, 0)):
        names = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        ports |= {address.partition(":")[2] for address in Cluster.from_environment(SLURM_STEP | names).addresses}
    assert len(ports) == 8
