"""The connections of the key-value store; its contents are tested with `findings` and `stopping`."""

from __future__ import annotations

import socket
import subprocess
import sys

from strategies.control_plane.channel import Channel
from strategies.control_plane.key_value_store import PROTOCOL, KeyValueStore
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


def test_a_text_for_rank_0_reaches_nobody_else() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    ours = {rank: Channel(pair[0], PROTOCOL) for rank, pair in enumerate(pairs, 1)}
    first = KeyValueStore(0, 3, ours)
    others = [KeyValueStore(rank, 3, {0: Channel(pair[1], PROTOCOL)}) for rank, pair in enumerate(pairs, 1)]
    try:
        others[0].post_to_rank_0("report", "of rank 1")
        others[0].post("all", "of rank 1")
        first.post_to_rank_0("report", "of rank 0")
        assert first.wait(lambda: len(first.read("report")) == 2, 60)
        # Messages come in their order.
        assert others[1].wait(lambda: others[1].read("all") == {1: "of rank 1"}, 60)
        assert first.read("report") == {0: "of rank 0", 1: "of rank 1"}
        assert others[1].read("report") == {}
    finally:
        for store in (first, *others):
            store.close("ended")
