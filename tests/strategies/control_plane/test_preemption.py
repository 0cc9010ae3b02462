"""SIGTERM to small programs of their own; its saving is tested in `tests/keras_ext/checkpoints` and the examples."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.processes import ROOT

PROGRAM = """
import os, signal, sys, threading, time
from strategies.control_plane.preemption import Preemption

is_told = threading.Lock()

def leave(reason):
    if not is_told.acquire(blocking=False):
        return
    # On its way to the others.
    time.sleep(0.5)
    sys.stdout.write(f"{reason}, told by {threading.current_thread().name}\\n")
    sys.stdout.flush()

preemption = Preemption()
preemption.leave_by(leave)
preemption.hear()
for _ in range(int(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGTERM)
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("num_signals", [1, 3])
def test_the_others_are_told_before_it_ends(num_signals: int) -> None:
    """Python's handler and the listening thread both hear of it: the second one must not end what the first does."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(num_signals)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGTERM, ended
    assert ended.stdout.count("was ended by SIGTERM, told by") == 1, ended.stdout
