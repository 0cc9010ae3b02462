"""Forked programs start and end like those of ``python``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import python

LIMIT_SECONDS = 200
TELLS = """
import json, os, sys
where = sys.path[0]
print(json.dumps([sys.argv[1:], __name__, os.getcwd(), os.environ.get("NAME"), where, sys.stdin.read()]))
print("said", file=sys.stderr)
sys.exit(7)
"""


def run_program(command: list[str], folder: Path) -> tuple[int, list[object], str]:
    """Returns the exit code, the program's output, and its last line on stderr."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NAME": "a name"},
        input="typed",
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()[-1]


def test_they_have_what_an_interpreter_would_give_them(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    program = folder / "tells.py"
    program.write_text(TELLS)
    for arguments in ([str(program), "a b", "-c"], ["-c", TELLS, "x"], ["-m", "tells", "--flag"]):
        assert run_program(python(*arguments), folder) == run_program([sys.executable, *arguments], folder)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("raise ValueError('no')", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit, os; atexit.register(os._exit, 5)", 5),
    ],
)
def test_exit_codes(code: str, expected: int) -> None:
    assert subprocess.run(python("-c", code), capture_output=True, timeout=LIMIT_SECONDS, check=False).returncode == (
        expected
    )


def test_signals_are_passed_on_and_who_is_left_alone_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('term', flush=True))\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    with subprocess.Popen(python("-c", program), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pids = [int(pid) for pid in client.stdout.readline().split()]
        client.send_signal(signal.SIGTERM)
        assert client.stdout.readline() == "term\n"
        client.kill()
    end = time.monotonic() + LIMIT_SECONDS
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


def test_what_imports_read_is_read_by_a_new_interpreter() -> None:
    code = "import sys; print(sys.dont_write_bytecode)"
    done = subprocess.run(
        python("-c", code),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
