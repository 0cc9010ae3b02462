"""A throwaway Slurm: munge and a controller on one host, a slurmd on each of the others, all of them ended on leaving.

Hosts are those of tests/hosts: network namespaces with names and addresses. Key, configuration, state and logs are in a
temporary folder. Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.hosts import namespaces, network
from tests.processes import ENVIRONMENT, ROOT

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
PACKAGES = "slurmctld slurmd slurm-client munge"
_LIMIT_SECONDS = 60.0

# A second "node" of two cores is the same two cores: Slurm is asked to believe it (config_overrides). After a requeue
# Slurm waits until the credentials of the first start are invalid, 120 s unless cred_expire says otherwise.
_CONFIGURATION = """
ClusterName=throwaway
SlurmctldHost=host0({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MinJobAge=600
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={nodes} CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=ordinary Nodes={nodes} Default=YES PriorityTier=1 MaxTime=60 GraceTime=60
PartitionName=urgent Nodes={nodes} PriorityTier=10 MaxTime=60 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Returns the reason why this machine cannot run Slurm; None if it can."""
    missing = [name for name in PROGRAMS if namespaces.path_of(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}. On Debian: apt-get install {PACKAGES}"
    return namespaces.why_not()


class Slurm:
    """A context manager with a running Slurm of `num_nodes` nodes, host1 and the following; leaving it ends all.

    Args:
        num_nodes: the number of nodes, of two tasks each.
        folder: gets the configuration, the state, and the logs.
    """

    def __init__(self, num_nodes: int, folder: Path) -> None:
        self.folder = folder
        self.hosts = network.Hosts(num_nodes + 1, folder)
        self._nodes = range(1, num_nodes + 1)

    def __enter__(self) -> Self:
        self.hosts.__enter__()
        try:
            self._start()
        except BaseException:
            self.hosts.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.hosts.__exit__()

    def call(self, *command: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
        """Runs a command such as `sbatch` on the controller's host and returns its output.

        Raises:
            RuntimeError: it fails, with its messages.
        """
        done = subprocess.run(
            [*self.hosts.inside(0), *command],
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT, **self._variables, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command} fails: {done.stdout}{done.stderr}")
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        """Returns what `scontrol show job` says, by name: JobState, Restarts, ExitCode and others."""
        words = self.call("scontrol", "-o", "show", "job", job_id).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def start_node(self, host: int) -> None:
        """Starts the slurmd of a host."""
        self.hosts.run(host, ["slurmd", "-D", "-N", f"host{host}"], self.folder / f"host{host}.out", self._variables)

    @property
    def _variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def _start(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        for name in ("state", *(f"spool-host{host}" for host in self._nodes)):
            (self.folder / name).mkdir()
        self.call("mungekey", "--create", f"--keyfile={munge}/key")
        files = [f"--{name}={munge}/{name.removesuffix('-file')}" for name in ("key-file", "log-file", "pid-file")]
        self.hosts.run(
            0,
            ["munged", "--foreground", "--force", *files, f"--seed-file={munge}/seed", f"--socket={munge}/socket"],
            self.folder / "munged.out",
            self._variables,
        )
        nodes = ",".join(f"host{host}" for host in self._nodes)
        text = _CONFIGURATION.format(addresses=self.hosts.addresses, nodes=nodes, folder=self.folder)
        (self.folder / "slurm.conf").write_text(text)
        # The plugin for v1 asks for no mounted cgroup as long as nothing uses one; the hosts have none.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._wait("munge's socket", lambda: (munge / "socket").exists())
        self.hosts.run(0, ["slurmctld", "-D", "-c"], self.folder / "host0.out", self._variables)
        for host in self._nodes:
            self.start_node(host)
        self._wait("idle nodes", lambda: self._num_idle() == len(self._nodes))

    def _num_idle(self) -> int:
        try:
            return self.call("sinfo", "-h", "-N", "-p", "ordinary", "-o", "%t").split().count("idle")
        except RuntimeError:
            return 0

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out"))
                raise TimeoutError(f"no {what} after {_LIMIT_SECONDS} s:\n{logs}")
            time.sleep(0.2)
