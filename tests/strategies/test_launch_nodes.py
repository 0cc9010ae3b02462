"""Jobs of several nodes, with launchers on one machine: they end together, and name the cause. Small plain programs."""

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import free_ports
from tests.strategies.launching import (
    READY,
    TIMEOUT_SECONDS,
    Running,
    clocked_nodes,
    last_line,
    name,
    nodes,
    ready,
    wait_until_gone,
    written,
)

SLEEP = READY + "time.sleep(1000)"
# The first process that is killed ends the job: the others end on the first signal and need no second one.
PATIENT = ("--grace-seconds", "1000", "--node-timeout", "1000")


class TestEndTogether:
    @pytest.mark.parametrize(("rank", "codes"), [(0, (139, 1)), (2, (1, 139))])
    def test_a_rank_that_fails(self, rank: int, codes: tuple[int, int], tmp_path: Path) -> None:
        with nodes(written(tmp_path, SLEEP), *PATIENT) as launchers:
            pids = ready(launchers)
            os.kill(pids[rank], signal.SIGSEGV)
            ends = [launcher.end() for launcher in launchers]
            wait_until_gone(pids.values())
        assert tuple(code for code, _, _ in ends) == codes
        expected = (
            f"rank {rank} on {name(min(rank, 1))} failed with signal SIGSEGV (11) and all others were terminated."
        )
        assert [last_line(stderr) for _, _, stderr in ends] == [expected] * 2

    @pytest.mark.parametrize("at", [0, 1])
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_a_launcher(self, at: int, signum: signal.Signals, tmp_path: Path) -> None:
        with nodes(written(tmp_path, SLEEP), *PATIENT) as launchers:
            pids = ready(launchers)
            launchers[at].process.send_signal(signum)
            ends = [launcher.end() for launcher in launchers]
            wait_until_gone(pids.values())
        assert [code for code, _, _ in ends] == [128 + signum] * 2
        expected = f"{name(at)} was ended by {signum.name} ({signum.value})."
        assert [last_line(stderr) for _, _, stderr in ends] == [expected] * 2

    @pytest.mark.parametrize("at", [0, 1])
    def test_a_launcher_that_is_killed(self, at: int, tmp_path: Path) -> None:
        with nodes(written(tmp_path, SLEEP), *PATIENT) as launchers:
            pids = ready(launchers)
            launchers[at].process.kill()
            code, _, stderr = launchers[1 - at].end()
            wait_until_gone(pids.values())
        assert code == 1
        assert re.match(
            re.escape(f"{name(at)} is gone: ") + "(the connection was closed|Connection reset)", last_line(stderr)
        )

    @pytest.mark.parametrize("at", [0, 1])
    def test_a_launcher_that_is_frozen(self, at: int, tmp_path: Path) -> None:
        """The launcher ends after it resumes, because its peers have given it up."""
        with clocked_nodes(written(tmp_path, SLEEP), "--node-timeout", "30") as launchers:
            pids = ready(launchers)
            for launcher in 3 * launchers:
                # Heartbeats arrive in time.
                launcher.advance(20)
            assert [launcher.process.poll() for launcher in launchers] == [None, None]
            launchers[at].process.send_signal(signal.SIGSTOP)
            launchers[1 - at].advance_to_end(31)
            code, _, stderr = launchers[1 - at].end()
            assert code == 1
            assert last_line(stderr) == f"{name(at)} is gone: silent for 30 s."
            launchers[at].process.send_signal(signal.SIGCONT)
            assert launchers[at].end()[0] == 1
            wait_until_gone(pids.values())

    def test_a_second_signal_kills_on_all_nodes(self, tmp_path: Path) -> None:
        deaf = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n" + SLEEP
        with clocked_nodes(written(tmp_path, deaf), *PATIENT) as launchers:
            pids = ready(launchers)
            launchers[1].process.send_signal(signal.SIGTERM)
            launchers[1].wait_for(b"Send it again to kill them.")
            for launcher in launchers[::-1]:
                launcher.advance(999)
            assert all(psutil.pid_exists(pid) for pid in pids.values())
            launchers[1].process.send_signal(signal.SIGTERM)
            assert [launcher.end()[0] for launcher in launchers] == [143, 143]
            wait_until_gone(pids.values())


@pytest.mark.parametrize("last", ["0", "2"])
def test_a_node_waits_for_the_others_to_end(last: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""import os, pathlib, sys, time
print("ready", os.getpid(), file=sys.stderr)
while os.environ["RANK"] == "{last}" and not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.01)
"""
    with clocked_nodes(written(tmp_path, code), *PATIENT) as launchers:
        pids = ready(launchers)
        wait_until_gone(pid for rank, pid in pids.items() if str(rank) != last)
        for launcher in launchers:
            launcher.advance(900)
            launcher.advance(0)
        assert [launcher.process.poll() for launcher in launchers] == [None, None]
        go.touch()
        assert [launcher.end()[0] for launcher in launchers] == [0, 0]


def test_a_program_that_cannot_be_started_ends_the_job_everywhere(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with nodes(str(broken), "--no-python") as launchers:
        for code, _, stderr in [launcher.end() for launcher in launchers]:
            assert code == 1
            assert b"cannot be started: " in stderr


def test_a_stranger_on_the_link_is_a_node_that_is_gone(tmp_path: Path) -> None:
    """The guest announces itself as node 1, and then sends data that is not of the protocol."""
    [port] = free_ports(1)
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    with Running(*flags, written(tmp_path, SLEEP)) as launcher:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            with contextlib.suppress(OSError):
                guest = socket.create_connection(("127.0.0.1", port))
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with guest:
            node = (
                '{"node_rank": 1, "num_nodes": 2, "host": "x", "ports": [5], "hostname": "x", "pid": 1, "token": "t"}'
            )
            guest.sendall(b'{"protocol": "strategies.launch 3", "node": %s}\n' % node.encode())
            pids = launcher.ready(1)
            guest.sendall(b'{"protocol": "strategies.launch 3", "type": "Ended", "fields": {"round": "x"}}\n')
            code, _, stderr = launcher.end()
            wait_until_gone(pids.values())
    assert code == 1
    assert last_line(stderr).startswith("node 1 (x) is gone: Not a Ended")
