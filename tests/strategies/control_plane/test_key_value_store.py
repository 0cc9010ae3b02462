"""The connections of the key-value store; its contents are tested with `findings` and `stopping`."""

from __future__ import annotations

import subprocess
import sys

from tests.processes import ROOT

#: A process with a `KeyValueStore` ends, and leaves a child behind.
ORPHANS = """
import os, signal, socket, time
from strategies.control_plane.channel import Channel
from strategies.control_plane.key_value_store import PROTOCOL, KeyValueStore

ours, theirs = socket.socketpair()
reader, writer = os.pipe()
parent = os.fork()
if parent == 0:
    ours.close()
    store = KeyValueStore(0, 2, {1: Channel(theirs, PROTOCOL)})
    child = os.fork()
    if child == 0:
        # As what Python calls at the end of the child.
        store.close("ended")
        time.sleep(1000)
        os._exit(0)
    os.write(writer, str(child).encode())
    os.kill(os.getpid(), signal.SIGKILL)
theirs.close()
os.waitpid(parent, 0)
ours.settimeout(60)
received = ours.recv(100)
os.kill(int(os.read(reader, 100)), signal.SIGKILL)
assert received == b"", received
"""


def test_a_forked_child_holds_no_connection_open() -> None:
    """Peers see by the closed connection that a process has left; its child does not hold the connection open."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ORPHANS]
    ended = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=200, check=False)
    assert (ended.returncode, ended.stderr) == (0, b""), ended
