"""Hosts on one machine: network namespaces joined by a bridge, each with an address, a host name and an sshd.

    host0 ── eth1 ──┐
    host1 ── eth1 ──┼── bridge, in a namespace of its own
    host2 ── eth1 ──┘

Files and process ids are those of the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.hosts import namespaces, ssh
from tests.hosts.namespaces import ip
from tests.processes import ENVIRONMENT, ROOT

INTERFACE = "eth1"
_LIMIT_SECONDS = 60.0


class Hosts:
    """A context manager with `count` hosts, numbered from 0, that can connect; leaving it kills their processes.

    Args:
        count: the number of hosts.
        folder: gets keys and the logs of the sshds.
        aliases: further names of the first hosts.
    """

    def __init__(self, count: int, folder: Path, aliases: Sequence[Sequence[str]] = ()) -> None:
        self._keys = ssh.Keys(folder)
        self._switch = namespaces.name_of("switch")
        self._namespaces = [namespaces.name_of(f"host{i}") for i in range(count)]
        self._sshds: dict[int, subprocess.Popen[bytes]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.addresses = tuple(f"10.99.0.{i + 1}" for i in range(count))
        self.names = tuple(f"host{i}" for i in range(count))
        self._aliases = [" ".join(aliases[i]) if i < len(aliases) else "" for i in range(count)]

    def __enter__(self) -> Self:
        namespaces.remove_those_of_dead_runs()
        try:
            self._connect()
            self.restore()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def run(
        self, host: int, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command in this repository's root, as the leader of its own process group.

        Args:
            host: the host.
            command: the command.
            log: gets stdout and stderr.
            environment: variables besides those of this process.
        """
        path = {"PATH": f"{self._keys.path}:{os.environ['PATH']}"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                # A shell without job control, which may have started the tests, makes its children ignore SIGINT.
                [*self.inside(host), "env", "--default-signal=INT", *command],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, **path, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def horovodrun(self, hosts: Sequence[int], program: Sequence[str]) -> list[str]:
        """Returns the arguments of a `horovodrun`, to be run on the first host, that starts a program on each host."""
        named = ",".join(f"{self.names[host]}:1" for host in hosts)
        arguments = ["-np", str(len(hosts)), "-H", named, "--network-interfaces", INTERFACE, "--disable-cache"]
        return [*arguments, "--ssh-port", str(ssh.PORT), *program]

    def inside(self, host: int) -> list[str]:
        """Returns the beginning of a command that runs the rest on a host."""
        namespace = ["ip", "netns", "exec", self._namespaces[host], "unshare", "--uts"]
        return [*namespace, "sh", "-c", 'hostname "$0" && exec "$@"', self.names[host]]

    def pids(self, host: int) -> list[int]:
        """Returns the ids of the processes on a host, without sshd's."""
        return [pid for pid in namespaces.pids(self._namespaces[host]) if _name_of(pid) not in ("sshd", None)]

    def cut(self, host: int) -> None:
        """Takes the host's link down at the switch: the host loses its carrier, and its peers get no message."""
        ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Takes the host's link up again at the switch."""
        ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def take_down(self, host: int) -> None:
        """Takes the host's own interface down: its routes are removed, and sending fails at once."""
        ip("-n", self._namespaces[host], "link", "set", INTERFACE, "down")

    def take_up(self, host: int) -> None:
        """Takes the host's own interface up again."""
        ip("-n", self._namespaces[host], "link", "set", INTERFACE, "up")

    def stop(self, host: int) -> None:
        """Freezes all processes of a host, including sshd; its kernel still acknowledges packets."""
        namespaces.signal_all(self._namespaces[host], signal.SIGSTOP)

    def cont(self, host: int) -> None:
        """Continues the frozen processes."""
        namespaces.signal_all(self._namespaces[host], signal.SIGCONT)

    def drop(self, host: int) -> None:
        """Kills all processes of a host, including sshd; its kernel closes their connections."""
        namespaces.kill_all(self._namespaces[host])

    def restore(self) -> None:
        """Kills processes on the hosts, reconnects the hosts, and restarts missing sshds."""
        for host in range(len(self.names)):
            self.drop(host)
            self.take_up(host)
            self.mend(host)
        self._reap()
        for host, address in enumerate(self.addresses):
            self._sshds[host] = self._keys.serve(address, self.inside(host))

    def _connect(self) -> None:
        hosts = zip(self.addresses, self.names, self._aliases, strict=True)
        listed = "".join(f"{address} {name} {aliases}\n" for address, name, aliases in hosts)
        namespaces.add("switch", {})
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            namespace = namespaces.add(name, {"hosts": f"127.0.0.1 localhost\n{listed}"})
            port = f"port{name.removeprefix('host')}"
            ends = ["peer", "name", port, "netns", self._switch]
            ip("link", "add", INTERFACE, "netns", namespace, "type", "veth", *ends)
            ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", INTERFACE)
            ip("-n", namespace, "link", "set", INTERFACE, "up")
            ip("-n", namespace, "link", "set", "lo", "up")

    def _remove(self) -> None:
        namespaces.remove((*self._namespaces, self._switch))
        self._reap()

    def _reap(self) -> None:
        for process in (*self._processes, *self._sshds.values()):
            process.wait(_LIMIT_SECONDS)
        self._processes.clear()
        self._sshds.clear()


def _name_of(pid: int) -> str | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).name())
    return None
