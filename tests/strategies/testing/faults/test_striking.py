"""The effect of each fault on a small program of its own, without TensorFlow."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from strategies.testing.faults.writes import changed_path
from tests.processes import ROOT

STRIKE = """
import sys
from strategies.testing.faults.plan import Fault
from strategies.testing.faults.striking import strike, unlimit_files
def write(path):
    with open(path, "wb", buffering=0) as file:
        for _ in range(10):
            # The rest of what was written in part is tried again.
            rest = 100 - file.write(b"x" * 100)
            assert file.write(b"x" * rest) == rest
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STRIKE + code]
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    ("kind", "code"), [("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM), ("leave", 0), ("raise", 1)]
)
def test_ends(kind: str, code: int, tmp_path: Path) -> None:
    ended = run(f"strike(Fault({kind!r}, 7, 1), 1)\nprint('on')", tmp_path)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    assert f"{kind} of rank 1 at step, from step 7" in ended.stderr


def test_a_stop_that_ends(tmp_path: Path) -> None:
    code = """
import threading, time
times = [time.monotonic()]
def note():
    while True:
        times.append(time.monotonic())
        time.sleep(0.001)
threading.Thread(target=note, daemon=True).start()
strike(Fault("stop", seconds=0.5), 0)
times.append(time.monotonic())
print(max(later - earlier for earlier, later in zip(times, times[1:])) > 0.4)
"""
    ended = run(code, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_a_stop_for_good(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", STRIKE + "strike(Fault('stop'), 0)"], cwd=ROOT, stderr=-3)
    try:
        deadline = time.monotonic() + 60
        while psutil.Process(program.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        program.kill()
        program.wait()


def test_slow(tmp_path: Path) -> None:
    code = "import time; t = time.monotonic(); strike(Fault('slow', seconds=0.3), 0); print(time.monotonic() - t)"
    assert float(run(code, tmp_path).stdout) > 0.3


def test_a_full_disk_is_an_error_of_a_write(tmp_path: Path) -> None:
    code = """
strike(Fault("full_disk", at="save", byte=250), 0)
try:
    write("a")
except OSError as error:
    print(error)
try:
    write("a")
except OSError as error:
    print(error)
unlimit_files()
write("b")
"""
    ended = run(code, tmp_path)
    assert ended.stdout == "[Errno 27] File too large\n" * 2, ended.stderr
    assert (tmp_path / "a").stat().st_size == 250
    assert (tmp_path / "b").stat().st_size == 1000
    assert "No space left on device" in run("strike(Fault('full_disk', at='save'), 0)", tmp_path).stderr


def test_killed_in_a_write(tmp_path: Path) -> None:
    assert run("strike(Fault('kill', at='save', byte=250), 0)\nwrite('a')", tmp_path).returncode == -signal.SIGXFSZ
    assert (tmp_path / "a").stat().st_size == 250


def test_changes_of_files_are_noticed(tmp_path: Path) -> None:
    code = """
import os, pathlib
from strategies.testing.faults.writes import watch_writes
class Seen:
    def __init__(self):
        self.paths = []
        watch_writes(self.on_write, "checkpoint")
    def on_write(self, path):
        open("checkpoint-of-its-own", "w").close()
        self.paths.append(path)
        if len(self.paths) == 7:
            raise OSError("full")
seen = Seen()
os.mkdir("checkpoints")
open("checkpoints/a", "w").close()
open("checkpoints/a").close()
os.close(os.open("checkpoints/b", os.O_RDONLY | os.O_CREAT))
os.close(os.open("checkpoints/b", os.O_RDONLY))
pathlib.Path("checkpoints/a").replace("c")
os.remove("checkpoints/b")
open("c", "a").close()
print(*seen.paths)
paths = seen.paths
os.rmdir("checkpoints")
os.mkdir("checkpoints")
try:
    os.mkdir("checkpoints/d")
except OSError as error:
    print(error)
print(os.listdir("checkpoints"))
del seen
os.mkdir("checkpoints/e")
print(len(paths))
"""
    ended = run(code, tmp_path)
    assert ended.stdout.split("\n")[:-1] == [
        "checkpoints checkpoints/a checkpoints/b checkpoints/a checkpoints/b",
        "full",
        "[]",
        "7",
    ], ended.stderr


def test_events_that_are_no_paths() -> None:
    assert changed_path("open", (3, "w", 0)) is None
    assert changed_path("open", ("a", None, None)) is None
    assert changed_path("os.listdir", ("a",)) is None
    assert changed_path("open", (b"a", "wb", 0)) == "a"
