"""Keys, an `ssh` that uses them, and an sshd that accepts them: the machine's own ssh files are not touched."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.namespaces import path_of

# Not 2222, the port of TensorFlow in jobs of Kubeflow and Vertex AI.
PORT = 2200
_LIMIT_SECONDS = 60.0


class Keys:
    """The host key of all hosts, and the key of the user who logs in.

    Args:
        folder: gets both keys, and in `bin` a program `ssh`: callers of ssh have no options to pass on to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "bin"
        for name in ("host_key", "client_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        options = {
            "IdentityFile": folder / "client_key",
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        config = folder / "ssh_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        self.path.mkdir()
        (self.path / "ssh").write_text(f'#!/bin/sh\nexec {path_of("ssh")} -F {shlex.quote(str(config))} "$@"\n')
        (self.path / "ssh").chmod(0o755)

    def serve(self, address: str, inside: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts an sshd and returns when it listens.

        Args:
            address: its address.
            inside: the beginning of a command line that runs the rest of it on a host, in its own mount namespace.
        """
        settings = {
            "ListenAddress": f"{address}:{PORT}",
            "HostKey": self._folder / "host_key",
            "AuthorizedKeysFile": self._folder / "client_key.pub",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "PidFile": "none",
            "UsePAM": "no",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        # sshd needs the folder /run/sshd, which exists where sshd is a service: this one gets its own /run.
        program = ["sh", "-c", 'mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$0" "$@"']
        log = self._folder / f"sshd-{address}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*inside, *program, str(path_of("sshd")), "-D", "-e", "-f", "/dev/null", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not _listens(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise RuntimeError(f"sshd does not listen at {address}:{PORT}: {log.read_text()}")
            time.sleep(0.02)
        return process


def _listens(pid: int) -> bool:
    """Returns True if a process listens on the port in the network namespace of process `pid`."""
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{PORT:04X}") and row[3] == "0A" for row in rows)
    return False
