"""The process that serves the status of a job, on node 0. Standard library only."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from strategies.monitoring.server import address_of, listen
from strategies.monitoring.settings import StatusSettings

_END_SECONDS = 2.0


class ServerProcess:
    """A process that serves the status that is in a folder, until `close`.

    It has no part in the job: ranks are forked while no thread of the launcher runs, and a client that sends nonsense,
    or too much, disturbs this process only. It ends with the launcher, however that ends.

    Args:
        settings: the address, and the token, which is passed to it over a pipe.
        folder: the folder, where a new token is left in a file that only this user can read.

    Raises:
        OSError: it cannot listen there, or cannot be started.
    """

    def __init__(self, settings: StatusSettings, folder: Path) -> None:
        served = settings.with_token()
        with listen(served) as listener:
            address = address_of(listener, served)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strategies.monitoring.serving"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # A Ctrl-C at the terminal is for the launcher.
                start_new_session=True,
            )
            line = {"fd": listener.fileno(), "folder": str(folder), "token": served.token}
            line |= {"host": served.host, "port": served.port}
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()
        #: The line that tells people where it is.
        self.announcement = f"status: http://{address} (python -m strategies.status {address}"
        if served.token != settings.token:
            token = folder / "token"
            token.touch(mode=0o600)
            token.write_text(f"{served.token}\n")
            self.announcement += f" --token-file {token}"
        self.announcement += ")"

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
