"""The end of a launched job: by itself, by one process that fails, by signals, by the death of the launcher."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.strategies.launching import READY, TIMEOUT_SECONDS, Clocked, Running, wait_until_gone, written


def test_one_that_ends_early_is_not_missed(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = (
        READY + f"while os.environ['RANK'] != '0' and not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('end')"
    )
    with Running("--nproc-per-node", "3", written(tmp_path, code)) as launcher:
        wait_until_gone([launcher.ready(3)[0]])
        go.touch()
        status, stdout, _ = launcher.end()
    assert status == 0
    assert sorted(stdout.splitlines()) == [b"[0] end", b"[1] end", b"[2] end"]


def test_one_that_fails_ends_the_others_and_has_the_last_word(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, pathlib, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    for i in range(40):
        print("out", i)
    while not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.01)
    raise SystemExit("the reason")
signal.signal(signal.SIGTERM, lambda *_: None if os.environ["RANK"] == "0" else sys.exit(4))
print("sleeping", subprocess.Popen(["sleep", "1000"]).pid, file=sys.stderr)
print("ready", os.getpid(), file=sys.stderr)
while True:
    time.sleep(0.01)
"""
    with Clocked("--nproc-per-node", "3", "--grace-seconds", "100", written(tmp_path, code)) as launcher:
        pids = launcher.ready(2)
        sleeping = [int(line.split()[-1]) for line in launcher.wait_for(b"] sleeping ", 2)]
        go.touch()
        wait_until_gone([pids[2]])
        launcher.advance(99)
        assert psutil.pid_exists(pids[0])
        launcher.advance(1)
        status, _, stderr = launcher.end()

    wait_until_gone(sleeping)
    assert status == 1
    lines = stderr.decode().splitlines()
    assert re.fullmatch(
        r"strategies.launch: rank 1 \(pid \d+\) failed with exit code 1 and the others of this node were terminated\.",
        lines[-1],
    )
    assert lines[-2] == "strategies.launch: did not end in time and were killed: rank 0."
    report = lines[lines.index("---- the last lines of rank 1 on stderr ----") :]
    assert report[1:-3] == [
        "the reason",
        "---- the last lines of rank 1 on stdout ----",
        *[f"out {i}" for i in range(20, 40)],
    ]


def test_one_that_is_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    with Running("--nproc-per-node", "2", written(tmp_path, READY + "time.sleep(1000)")) as launcher:
        pids = launcher.ready(2)
        os.kill(pids[1], signal.SIGSEGV)
        code, _, stderr = launcher.end()

    wait_until_gone(pids.values())
    assert code == 128 + signal.SIGSEGV
    assert b"strategies.launch: rank 1 (pid %d) failed with signal SIGSEGV (11) and" % pids[1] in stderr
    assert b"rank 0" not in stderr


@pytest.fixture
def heard_hangups() -> Iterator[None]:
    """Restores the default action of SIGHUP, which a test run under nohup ignores and its children inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard_hangups")
def test_signals_are_passed_on(tmp_path: Path) -> None:
    code = """import os, signal, sys, time
def say(signum, frame):
    print("heard", signum, file=sys.stderr)
    if signum == signal.SIGTERM:
        print("saved")
        sys.exit(0)
for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(signum, say)
print("ready", os.getpid(), file=sys.stderr)
while True:
    time.sleep(0.01)
"""
    with Running("--nproc-per-node", "2", "--grace-seconds", "1000", written(tmp_path, code)) as launcher:
        launcher.ready(2)
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            launcher.process.send_signal(signum)
            launcher.wait_for(b"heard %d" % signum, 2)
        status, stdout, stderr = launcher.end()
        assert status == 128 + signal.SIGTERM
        assert sorted(stdout.splitlines()) == [b"[0] saved", b"[1] saved"]
        assert stderr.endswith(b"\nstrategies.launch: ended by SIGTERM (15).\n")


def stop(pid: int) -> None:
    """Stops a process; returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_stopped_ranks_that_nobody_could_miss_end_the_job(tmp_path: Path) -> None:
    """Ranks may stay stopped while another rank runs, and while the launcher is stopped with its job."""
    go = tmp_path / "go"
    code = READY + f"while os.environ['RANK'] != '1' or not os.path.exists({str(go)!r}): time.sleep(0.01)"
    with Clocked("--nproc-per-node", "3", "--node-timeout", "5", written(tmp_path, code)) as launcher:
        pids = launcher.ready(3)
        for rank in (0, 2):
            stop(pids[rank])
        for _ in range(6):
            launcher.advance(1)
        go.touch()
        wait_until_gone([pids[1]])
        launcher.advance(0)
        stop(launcher.process.pid)
        launcher.move(1000)
        launcher.process.send_signal(signal.SIGCONT)
        for _ in range(2):
            launcher.advance(1)
        assert launcher.process.poll() is None
        assert all(psutil.Process(pids[rank]).status() == psutil.STATUS_STOPPED for rank in (0, 2))
        launcher.advance(1)
        # The launcher sends SIGTERM, then SIGKILL: a stopped process does not act on SIGTERM.
        launcher.advance_to_end(5)
        status, _, stderr = launcher.end()

    wait_until_gone(pids.values())
    assert status == 1
    assert stderr.decode().splitlines()[-2:] == [
        f"strategies.launch: rank 0 (pid {pids[0]}) was stopped for 5 s while no rank ran and the others of this node "
        f"were terminated.",
        "strategies.launch: the reason: Before it, with exit code 0, ended: rank 1.",
    ]


def test_a_second_signal_kills(tmp_path: Path) -> None:
    deaf = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n" + READY + "time.sleep(1000)"
    with Clocked("--nproc-per-node", "2", "--grace-seconds", "1000", written(tmp_path, deaf)) as launcher:
        pids = launcher.ready(2)
        # Two signals at once are one request: timeout(1) and some wrappers send them.
        launcher.process.send_signal(signal.SIGINT)
        launcher.process.send_signal(signal.SIGTERM)
        (said,) = launcher.wait_for(b"; waiting up to 1000 s for 2 processes to end.")
        launcher.advance(0)
        launcher.advance(999)
        assert all(psutil.pid_exists(pid) for pid in pids.values())
        assert launcher.process.poll() is None

        launcher.process.send_signal(signal.SIGTERM)

        code, _, stderr = launcher.end()
        # The system may deliver the second signal first.
        first = signal.SIGINT if b"SIGINT" in said else signal.SIGTERM
        assert code == 128 + first
        assert (
            b"were killed: rank 0, 1.\nstrategies.launch: ended by %s (%d).\n" % (first.name.encode(), first) in stderr
        )
        wait_until_gone(pids.values())


def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    with Running("--nproc-per-node", "2", written(tmp_path, READY + "time.sleep(1000)")) as launcher:
        pids = launcher.ready(2)
        launcher.process.kill()
        launcher.process.wait(TIMEOUT_SECONDS)
        wait_until_gone(pids.values())
