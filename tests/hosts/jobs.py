"""A training job on several hosts: its launchers, the progress of its ranks, and what it leaves."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.hosts.network import Hosts
from tests.strategies.parity.harness import Outcome

ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
PROGRAM = str(Path(__file__).with_name("train.py"))


class Job:
    """One process on each of the first hosts: by a launcher on each, or by `horovodrun` on the first, over ssh.

    Args:
        hosts: the hosts.
        engine: the name of the strategy, which determines the launcher.
        num_hosts: the number of hosts, and of ranks.
        folder: gets logs and the files of the ranks.
        arguments: arguments of the program, after strategy and folder.
        late_seconds: delay of the last host's start.
        launcher_arguments: further arguments of our launcher.
    """

    def __init__(
        self,
        hosts: Hosts,
        engine: str,
        num_hosts: int,
        folder: Path,
        arguments: Sequence[str] = (),
        late_seconds: float = 0.0,
        launcher_arguments: Sequence[str] = (),
    ) -> None:
        self._hosts, self._folder, self.num_hosts = hosts, folder, num_hosts
        program = [PROGRAM, engine, str(folder), *arguments]
        ranks = range(num_hosts)
        if engine == "HorovodStrategy":
            late = ["--late-rank", str(num_hosts - 1), "--seconds-late", str(late_seconds)]
            horovodrun = str(Path(sys.executable).with_name("horovodrun"))
            commands = [[horovodrun, *hosts.horovodrun(ranks, [sys.executable, *program, *late])]]
        else:
            launch = [sys.executable, "-m", "strategies.launch", "--nnodes", str(num_hosts), *launcher_arguments]
            at = ["--master-addr", hosts.addresses[0], "--node-rank"]
            commands = [[*launch, *at, str(rank), *program] for rank in ranks]
        self.logs = [folder / f"log{i}" for i in range(len(commands))]
        #: The launcher of each host, or of the first only.
        self.launchers: list[subprocess.Popen[bytes]] = []
        #: The hosts on which processes of the job have been seen.
        self._seen: set[int] = set()
        for host, (command, log) in enumerate(zip(commands, self.logs, strict=True)):
            if host and host == num_hosts - 1:
                time.sleep(late_seconds)
            self.launchers.append(hosts.run(host, command, log))

    def wait_for_steps(self, count: int, limit_seconds: float) -> None:
        """Returns when all ranks have done `count` steps."""
        deadline = time.monotonic() + limit_seconds
        while min(self.steps()) < count:
            assert all(launcher.poll() is None for launcher in self.launchers), self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def wait(self, hosts: Collection[int], limit_seconds: float) -> dict[int, float | None]:
        """Returns the seconds until no process of the job ran on each host; None for hosts where one still runs."""
        begin = time.monotonic()
        ended: dict[int, float | None] = dict.fromkeys(hosts)
        while None in ended.values() and time.monotonic() - begin < limit_seconds:
            for host in [host for host in hosts if ended[host] is None]:
                if self._hosts.pids(host):
                    self._seen.add(host)
                elif not self._is_starting(host, hosts):
                    ended[host] = time.monotonic() - begin
            time.sleep(0.05)
        return ended

    def _is_starting(self, host: int, hosts: Collection[int]) -> bool:
        """Returns True if a host has no process yet, because its launcher, or the one on the first host, starts it."""
        starter = min(host, len(self.launchers) - 1)
        return host not in self._seen and starter in hosts and self.launchers[starter].poll() is None

    def codes(self, hosts: Collection[int]) -> list[int | None]:
        """Returns the exit codes of the launchers on these hosts; None for a running one."""
        return [launcher.poll() for host, launcher in enumerate(self.launchers) if host in hosts]

    def outcome(self) -> Outcome:
        """Returns the outcome of rank 0 after training."""
        found: Outcome = pickle.loads((self._folder / "outcome").read_bytes())
        return found

    def output(self, limit: int = 6000) -> str:
        """Returns the end of each launcher's output."""
        texts = [log.read_text(errors="replace")[-limit:] for log in self.logs]
        return "\n".join(f"--- host {host} ---\n{text}" for host, text in enumerate(texts))

    def reasons(self) -> list[str]:
        """Returns what launchers log about the end, and the errors of ranks, without repetitions."""
        text = "\n".join(log.read_text(errors="replace") for log in self.logs)
        found = re.findall(r"^strategies\.launch: .*$|^\[\d\].*?\w*Error: .*$", text, re.MULTILINE)
        return list(dict.fromkeys(found))

    def steps(self) -> list[int]:
        """Returns the number of steps that each rank has done."""
        files = [self._folder / f"steps{rank}" for rank in range(self.num_hosts)]
        return [int((file.exists() and file.read_text()) or 0) for file in files]
