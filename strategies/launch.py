"""Starts one program several times, as the ranks of one job: ``python -m strategies.launch``, with torchrun's flags.

    python -m strategies.launch --nproc-per-node 2 train.py --epochs 3

Every process gets TF_CONFIG, which TensorFlow's and our strategies read, and torchrun's RANK, LOCAL_RANK, WORLD_SIZE,
LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT. It is pinned to its share of this node's cores, and gets as
many threads, unless TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or OMP_NUM_THREADS is set. Its lines of output are
prefixed with its rank, as in ``[0] ``, and are never interleaved.

On several nodes run the same command on each, with its own --node-rank; the number of processes may differ. Node 0
waits for the others at --master-addr:--master-port, and prints every 10 s which ones are missing. Flags that are not
given have the values of torchrun's variables (PET_NNODES and others, which Kubeflow sets), or of the variables in which
SageMaker (SM_HOSTS) and Vertex AI (CLUSTER_SPEC) name the machines; --standalone ignores these. Ranks are numbered
node by node, starting with node 0. The launchers stay connected to that of node 0, which decides for all.

All processes of all nodes are ended, with SIGTERM and after --grace-seconds with SIGKILL, if

- a process fails;
- a launcher gets SIGINT or SIGTERM;
- a node is gone: its launcher has ended, or was silent for --node-timeout seconds;
- no rank of the job has run for --node-timeout seconds: all that have not ended are stopped (SIGSTOP). Times in which
  the launcher itself was stopped do not count.

The last lines on stderr name the rank, the node and the cause. If a program under our strategies knows the reason, as
when a rank failed because another one had left, they give it as well. The exit code is that of the failed process, or
128 + the signal that killed it, on its node, and 1 on the others; after SIGINT or SIGTERM to a launcher it is 128 + the
signal on all nodes. It is 0 only if all processes of all nodes ended with 0. A second SIGINT or SIGTERM, a second or
more later, kills immediately. SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to the processes of the node. If the launcher
itself is killed, Linux kills its processes, but not their children.

With --max-restarts K all processes start again after a failure, up to K times, with new ports and with
TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS in their environment. Before a restart, processes that SIGTERM
does not end are killed after 2 s, or --grace-seconds if that is less. If a node is gone, the others continue with new
ranks, if they have at least --min-procs processes. If node 0 is gone, the job ends. The limits are those of node 0's
command line.

Exit code 75 of a process means that it was asked to end, has saved a checkpoint and can continue later; it is not a
failure. The launcher then waits up to --grace-seconds for the other processes to end. If a launcher was asked to stop,
all launchers return 75; but if the other nodes include node 0 and have at least --min-procs processes, they start again
without that launcher's node. If no launcher was asked, the processes start again if --max-restarts is given, else the
launchers return 75. Neither counts as a restart.

Each launcher makes a folder below TMPDIR and passes its path to its processes in STRATEGIES_TRACEBACK_DIR, replacing a
value that is set: rank N writes tracebacks to rank-N.txt. If the job fails and there are tracebacks, the folder is kept
and a line on stderr gives its path; otherwise it is removed.

With --status-port, node 0 shows the status of the job (`strategies.status`) at that port of 127.0.0.1, or of
--status-host, then with a token. With --pick-gpus N the processes of this node see N GPUs that nobody uses.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from strategies.launching.agent import Settings, run_node
from strategies.launching.coordinator import Coordinator, Policy
from strategies.launching.endpoint import Endpoint
from strategies.launching.environment import World, rank_environment
from strategies.launching.flags import MASTER_ADDR, MASTER_PORT, parsed
from strategies.launching.folder import JobFolder
from strategies.launching.links import Hub, Relay, Spoke, Team
from strategies.launching.messages import Start
from strategies.launching.nodes import Rendezvous, announcement, log_to_stderr, rendezvous
from strategies.launching.ports import LaunchError, ReservedPorts
from strategies.launching.processes import Task
from strategies.launching.status_service import StatusService
from strategies.topology.cores import partition_cores, usable_cores
from strategies.topology.rank_end import read_reason


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes, waits for all of them and returns the exit code.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2, before anything starts, for an invalid command line or environment.
    """
    flags = parsed(argv)
    try:
        return _launch(flags)
    except LaunchError as error:
        print(f"strategies.launch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Ctrl-C came before the processes were started, or while their last output was blocked.
        return 130


def _launch(flags: argparse.Namespace) -> int:
    plan = _Plan(flags)
    try:
        ports = plan.renew()
        policy = Policy(flags.max_restarts, flags.min_procs, flags.grace_seconds, flags.status is not None)
        if flags.nnodes == 1:
            own = announcement(0, 1, ports, MASTER_ADDR)
            found = Rendezvous({0: own}, {})
        else:
            own = announcement(
                flags.node_rank, flags.nnodes, ports, flags.local_addr or ("" if flags.node_rank else flags.master_addr)
            )
            if flags.described_by:
                log_to_stderr(
                    f"node {flags.node_rank} of {flags.nnodes} from {flags.described_by}; node 0 is at "
                    f"{flags.master_addr}:{flags.master_port or MASTER_PORT}"
                )
            endpoint = Endpoint(flags.master_addr, flags.master_port or MASTER_PORT, flags.rdzv_timeout)
            found = rendezvous(own, endpoint, policy.check)
        plan.status = status = StatusService(own, flags.status, log_to_stderr)
        settings = Settings(own, flags.grace_seconds, flags.node_timeout)
        return run_node(_team(found, policy, flags, status), plan, settings, status)
    finally:
        if plan.status is not None:
            plan.status.close()
        plan.release()
        plan.close_folder(ended_well=False)


def _team(found: Rendezvous, policy: Policy, flags: argparse.Namespace, relay: Relay) -> Team:
    if found.nodes:
        return Hub(Coordinator(found.nodes, policy), found.links, flags.node_timeout, relay)
    return Spoke(found.links[0], flags.node_timeout, flags.grace_seconds, relay)


class _Plan:
    """The ranks of this node: its free ports, and the processes to start."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._cores = partition_cores(usable_cores(), flags.nproc_per_node)
        self._reserved: ReservedPorts | None = None
        self._folder: JobFolder | None = None
        self._master_port = 0
        #: The status of the job, which the ranks report to.
        self.status: StatusService | None = None

    def renew(self) -> tuple[int, ...]:
        """Returns free ports for the processes, and holds them until `tasks` is called."""
        self.release()
        # One more than the processes need, for MASTER_PORT if it is not given.
        self._reserved = ReservedPorts(self._flags.nproc_per_node + 1)
        *ports, spare = self._reserved.ports
        self._master_port = self._flags.master_port or (spare if self._flags.nnodes == 1 else MASTER_PORT)
        return tuple(ports)

    def release(self) -> None:
        """Releases the ports."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def read_exit_reason(self, rank: int) -> str:
        """Returns the exit reason that the program of a rank left in this round; empty if it left none."""
        return "" if self._folder is None else read_reason(self._folder.path, rank)

    def close_folder(self, *, ended_well: bool) -> Path | None:
        """Removes the folder of tracebacks; if the job failed and left any, keeps it and returns its path."""
        folder, self._folder = self._folder, None
        return None if folder is None else folder.close(ended_well=ended_well)

    def tasks(self, start: Start) -> list[Task]:
        """Returns the processes to start, and releases the ports for them."""
        self.release()
        # Made only now: while nodes wait for each other, a signal ends the launcher at once, without removing a folder.
        self._folder = self._folder or JobFolder()
        self._folder.forget_reasons()
        flags = self._flags
        node_ranks = [node.node_rank for node in start.nodes]
        world = World(
            tuple(node.addresses for node in start.nodes),
            node_ranks.index(flags.node_rank or 0),
            flags.master_addr or MASTER_ADDR,
            self._master_port,
            start.num_restarts,
            start.max_restarts,
            self._folder.path,
        )
        environment: Mapping[str, str] = os.environ
        if self.status is not None:
            self.status.begin(start)
            environment = self.status.environment(environment)
        if flags.visible_gpus is not None:
            environment = {**environment, "CUDA_VISIBLE_DEVICES": flags.visible_gpus}
        interpreter = [] if flags.no_python else [sys.executable, *(["-m"] if flags.module else [])]
        return [
            Task(
                rank=world.first_rank + i,
                command=[*interpreter, flags.script, *flags.script_args],
                environment=rank_environment(world, i, len(cores), environment),
                cores=None if flags.no_pin else cores,
            )
            for i, cores in enumerate(self._cores)
        ]


if __name__ == "__main__":
    sys.exit(main())
