"""The process that serves the status for our launcher: ``python -m strategies.monitoring.serving``.

A process of its own, because the launcher forks its ranks while none of its threads runs, and because nothing that a
client does can disturb the job there. It reads its settings as one line of JSON from stdin, with the number of the
listening socket that it inherits, and ends when the launcher closes stdin, or is gone.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys

from strategies.monitoring.server import StatusServer
from strategies.monitoring.settings import StatusSettings
from strategies.monitoring.store import FolderStore


def main() -> int:
    """Serves until stdin is closed, and removes the folder if the launcher has left it."""
    line = json.loads(sys.stdin.readline())
    settings = StatusSettings(line["port"], line["host"], line["token"])
    server = StatusServer(socket.socket(fileno=line["fd"]), settings, FolderStore(line["folder"]))
    server.start()
    # The launcher writes nothing more.
    sys.stdin.read()
    # The threads of the server end with the process, without another moment's wait.
    shutil.rmtree(line["folder"], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
