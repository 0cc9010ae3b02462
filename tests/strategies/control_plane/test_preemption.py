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

#: Asked while there is a saver, which goes: the signal is not lost.
SAVES = """
import os, signal, sys, time
from strategies.control_plane import preemption

asked = preemption.of_process()
asked.saver = lambda num_steps: None
os.kill(os.getpid(), signal.SIGTERM)
while not asked.is_asked:
    time.sleep(0.01)
# Another strategy of this process has the same.
other = preemption.of_process()
sys.stdout.write("waits to save\\n")
sys.stdout.flush()
if sys.argv[1] == "end of training":
    other.saver = None
else:
    # An error ended it, which the program has handled.
    other.drop_saver()
    sys.stdout.write("goes on\\n")
    sys.stdout.flush()
    other.end_if_asked()
time.sleep(60)
"""


def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, argument],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("num_signals", [1, 3])
def test_the_others_are_told_before_it_ends(num_signals: int) -> None:
    """Python's handler and the listening thread both hear of it: the second one must not end what the first does."""
    ended = run(PROGRAM, str(num_signals))
    assert ended.returncode == -signal.SIGTERM, ended
    assert ended.stdout.count("was ended by SIGTERM, told by") == 1, ended.stdout


@pytest.mark.parametrize(
    ("when", "output"),
    [("end of training", "waits to save\n"), ("next call", "waits to save\ngoes on\n")],
)
def test_a_signal_is_not_lost_with_the_saver(when: str, output: str) -> None:
    ended = run(SAVES, when)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, output), ended
