"""SIGTERM to small programs; saving is tested in `tests/keras_ext/checkpoints` and the examples."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.processes import ROOT

PROGRAM = """
import os, signal, sys, threading, time
from strategies.control_plane.preemption import Preemption

is_told, is_seen_twice = threading.Lock(), threading.Event()

class Seen(Preemption):
    def _take(self):
        super()._take()
        # This is the other call for the signal, which must not have ended the process.
        is_seen_twice.set()

def leave(reason):
    if not is_told.acquire(blocking=False):
        return
    while not is_seen_twice.wait(0.01):
        pass
    sys.stdout.write(f"{reason}, told by {threading.current_thread().name}\\n")
    sys.stdout.flush()

preemption = Seen()
preemption.leave_by(leave)
preemption.install_handler()
for _ in range(int(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGTERM)
while True:
    time.sleep(0.01)
"""

#: SIGTERM comes while there is a saver, which is then removed: the signal is not lost.
SAVES = """
import os, signal, sys, time
from strategies.control_plane import preemption

asked = preemption.current()
asked.saver = lambda num_steps: None
os.kill(os.getpid(), signal.SIGTERM)
while not asked.is_asked:
    time.sleep(0.01)
# Another strategy of this process has the same.
other = preemption.current()
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
time.sleep(1000)
"""

#: Its children are signalled at once, some of them before they have run any code.
FORKS = """
import os, signal, sys, threading, time
from strategies.control_plane.preemption import Preemption

preemption = Preemption()
preemption.leave_by(lambda reason: print(reason, flush=True))
preemption.install_handler()
if sys.argv[1] == "saver":
    preemption.saver = lambda num_steps: None

def fork():
    for seconds in (0.0, 0.0, 0.0, 0.0, 0.0, 0.2):
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        time.sleep(seconds)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, status

fork()
# As the thread that starts the workers of a PyDataset.
thread = threading.Thread(target=fork)
thread.start()
thread.join()
time.sleep(0.2)
assert not preemption.is_asked
sys.stdout.write("goes on\\n")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGTERM)
while not preemption.is_asked:
    time.sleep(0.01)
sys.stdout.write(f"asked: {preemption.is_asked}\\n")
"""


def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, argument],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("num_signals", [1, 3])
def test_the_others_are_told_before_it_ends(num_signals: int) -> None:
    """Python's handler and the listening thread both see the signal: the thread must not end what the handler does."""
    ended = run(PROGRAM, str(num_signals))
    assert ended.returncode == -signal.SIGTERM, ended
    assert ended.stdout.count("was ended by SIGTERM, told by") == 1, ended.stdout


@pytest.mark.parametrize(
    ("saver", "output", "code"),
    [("saver", "goes on\nasked: True\n", 0), ("none", "goes on\nwas ended by SIGTERM\n", -signal.SIGTERM)],
)
def test_a_signal_to_a_forked_child_is_the_childs(saver: str, output: str, code: int) -> None:
    ended = run(FORKS, saver)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, output, ""), ended


@pytest.mark.parametrize(
    ("when", "output"),
    [("end of training", "waits to save\n"), ("next call", "waits to save\ngoes on\n")],
)
def test_a_signal_is_not_lost_with_the_saver(when: str, output: str) -> None:
    ended = run(SAVES, when)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, output), ended
