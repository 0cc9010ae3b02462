"""The command, on a job of four ranks: a slow rank, a kill, a restart, the end. The ranks report without TensorFlow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strategies import status
from strategies.monitoring.client import Client, ClientError, GoneError, Trace
from strategies.monitoring.job_status import JobStatus, job_status
from tests.strategies.launching import Clocked, launched, nodes, wait_until_gone, written
from tests.strategies.tracing.records import record

LIMIT_SECONDS = 120

# Rank 2 is slow in the first round: the others always wait in a collective.
PROGRAM = """
import os, pathlib, signal, sys, time
from strategies import monitoring
from strategies.control_plane import Member

signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert not [name for name in os.environ if "TOKEN" in name or "STATUS_PORT" in name]
is_slow = rank == 2 and not restarts
monitoring.watch(Member(0, 1), monitoring.Probes(call=lambda: "fit", is_waiting=lambda: not is_slow))
reporter = monitoring.reporter()
reporter.on_trace_request = lambda request: reporter.deliver(request.id, f"rank {rank}, {request.num_steps} steps")
reporter.progress.rows_of_next = 32
reporter.progress.begin(epochs=2, steps_per_epoch=100)
reporter.progress.begin_epoch(1)
for step in range(1, 19):
    reporter.progress.note_step(step)
    time.sleep(0.01)
# The speed is known once two steps were seen.
report = pathlib.Path(os.environ["STRATEGIES_STATUS_DIR"], f"rank.{rank}.json")
while not (report.exists() and '"total_steps": 18' in report.read_text()):
    time.sleep(0.01)
reporter.progress.note_step(19)
reporter.note_checkpoint("run/checkpoint")
time.sleep(600)
"""


def awaited(client: Client, condition: Callable[[JobStatus], bool]) -> JobStatus:
    """Returns the first status for which a condition holds."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        job = client.status()
        if condition(job):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.02)


def at_step_19(job: JobStatus) -> bool:
    """Returns True if all ranks have finished the steps of the program, and know their speed."""
    reports = [rank.report for rank in job.ranks]
    ready = [report is not None and report.step == 19 and bool(report.steps_per_second) for report in reports]
    return bool(ready) and all(ready)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert status.main(arguments) == 0
    return capsys.readouterr().out


def address_of(line: bytes) -> str:
    return line.decode().partition("http://")[2].split()[0]


def test_a_job_of_four_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--nproc-per-node", "4", "--no-pin", "--max-restarts", "2", "--status-port", "0"]
    with Clocked(*flags, written(tmp_path, PROGRAM)) as launcher:
        address = address_of(launcher.wait_for(b"status: http://")[0])
        client = Client(address)

        # A slow rank.
        job = awaited(client, lambda job: job.stragglers == (2,) and at_step_19(job) and bool(job.checkpoint))
        assert (job.state, job.num_restarts, job.max_restarts) == ("running", 0, 2)
        assert [rank.state for rank in job.ranks] == ["fit"] * 4
        assert (job.epoch, job.step, job.fraction, job.checkpoint) == (1, 19, 0.095, "run/checkpoint")
        assert "the others wait for rank 2" in shown(capsys, address, "--once")
        assert json.loads(shown(capsys, f"http://{address}/", "--json"))["stragglers"] == [2]
        assert 'rank_straggler{rank="2",' in shown(capsys, address, "--prometheus")
        assert "Status of a job" in client.read("/")

        # A trace.
        trace = client.trace(7)
        assert (dict(trace.errors), trace.events[3]) == ({}, "rank 3, 7 steps")

        # A rank that is stopped, and goes on.
        pid = job.ranks[1].report.pid if job.ranks[1].report else 0
        os.kill(pid, signal.SIGSTOP)
        assert awaited(client, lambda job: job.ranks[1].state == "stopped").ranks[1].is_alive
        os.kill(pid, signal.SIGCONT)

        # A rank that is killed. The others ignore SIGTERM, and time does not pass.
        os.kill(job.ranks[2].report.pid if job.ranks[2].report else 0, signal.SIGKILL)
        job = awaited(client, lambda job: not job.ranks[2].is_alive)
        assert (job.state, job.ranks[2].state) == ("stopping", "killed by SIGKILL (9)")
        assert "killed by SIGKILL (9)" in shown(capsys, address, "--once")
        assert 'rank_up{rank="2",host="' in shown(capsys, address, "--prometheus")

        # The restart, after the time that the others have to end.
        launcher.advance(10)
        job = awaited(client, lambda job: job.num_restarts == 1 and all(rank.report for rank in job.ranks))
        assert "failed with signal SIGKILL (9)" in job.restart_reason
        assert "restarts: 1 of 2" in shown(capsys, address, "--once")
        pids = [rank.report.pid for rank in job.ranks if rank.report]
        assert not list(Path(launcher._temporary.name).glob("strategies-status-*/trace-*"))

        # The end.
        launcher.process.send_signal(signal.SIGINT)
        launcher.advance_to_end(5)
        wait_until_gone(pids)
        assert launcher.end()[0] == 128 + signal.SIGINT
        with pytest.raises(GoneError):
            client.status()
        assert not list(Path(launcher._temporary.name).glob("strategies-*"))


def test_a_launcher_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    with Clocked("--status-port", "0", written(tmp_path, "import time; time.sleep(600)")) as launcher:
        client = Client(address_of(launcher.wait_for(b"status: http://")[0]))
        assert client.status().world_size == 1
        launcher.process.kill()
        deadline = time.monotonic() + LIMIT_SECONDS
        with contextlib.suppress(ClientError):
            while time.monotonic() < deadline:
                client.status()
                time.sleep(0.02)
        assert time.monotonic() < deadline
        folder = Path(launcher._temporary.name)
        while list(folder.glob("strategies-status-*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_several_nodes_report_to_node_0(tmp_path: Path) -> None:
    """A trace of some 300 KB goes in parts, as messages between launchers are limited."""
    program = PROGRAM.replace('steps")', "steps\" + 300_000 * '\"')")
    with nodes(written(tmp_path, program), "--status-port", "0", "--grace-seconds", "0") as launchers:
        client = Client(address_of(launchers[0].wait_for(b"status: http://")[0]))
        job = awaited(client, at_step_19)
        trace = client.trace(7)
        assert {rank: (text[:6], len(text) > 300_000) for rank, text in trace.events.items()} == {
            rank: (f"rank {rank}", True) for rank in range(3)
        }
        pids = [rank.report.pid for rank in job.ranks if rank.report]
        for launcher in launchers:
            launcher.process.send_signal(signal.SIGTERM)
        for launcher in launchers:
            assert launcher.end()[0] == 128 + signal.SIGTERM
        wait_until_gone(pids)


def test_a_port_in_use_does_not_end_the_job(tmp_path: Path) -> None:
    path = written(tmp_path, "import os; print('STRATEGIES_STATUS_DIR' in os.environ)")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = launched("--status-port", port, path, environment={"TMPDIR": str(tmp_path)})
    assert (ended.returncode, ended.stdout) == (0, b"[0] False\n")
    assert b"the job goes on without a status, at port " in ended.stderr
    assert b"in use" in ended.stderr
    assert not list(tmp_path.glob("strategies-*"))


def test_a_token_where_others_can_connect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import os, time; print([n for n in os.environ if 'STATUS' in n], flush=True); time.sleep(600)"
    path = written(tmp_path, program)
    flags = ["--status-port", "0", "--status-host", "0.0.0.0", "--grace-seconds", "0"]
    with Clocked(*flags, path) as launcher:
        line = launcher.wait_for(b"status: http://")[0].decode()
        port = int(line.partition("http://")[2].split()[0].rpartition(":")[2])
        token_file = Path(line.rpartition("--token-file ")[2].strip(")"))
        token = token_file.read_text().strip()
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert token not in line
        address = f"127.0.0.1:{port}"
        assert status.main([address, "--json"]) == 1
        assert "needs the token" in capsys.readouterr().err
        assert status.main([address, "--json", "--token", "wrong"]) == 1
        assert status.main([address, "--json", "--token-file", str(token_file)]) == 0
        # Nothing on a command line.
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert token.encode() not in process.read_bytes() or process.parent.name == str(os.getpid())
        launcher.process.send_signal(signal.SIGTERM)
        launcher.advance_to_end(5)
        _, stdout, stderr = launcher.end()
        assert stdout == b"[0] ['STRATEGIES_STATUS_DIR']\n"
        assert token.encode() not in stderr


class TestPage:
    """The page of the terminal, in place."""

    def test_it_is_renewed_until_the_job_ends(self) -> None:
        pages = [_job("starting"), _job("running")]

        class Ending(Client):
            def status(self) -> JobStatus:
                if not pages:
                    raise GoneError("gone")
                return pages.pop(0)

        output = io.StringIO()
        status._show(Ending("localhost:1"), output, sleep=lambda seconds: None)
        text = output.getvalue()
        assert text.startswith("\x1b[2J\x1b[Hjob       starting, 0 ranks\x1b[K\n")
        assert text.endswith("\x1b[JThe job has ended.\n")
        assert text.count("\x1b[2J") == 1

    def test_a_tunnel_to_a_job_that_has_ended(self) -> None:
        """As of `ssh -L`: it takes the connection, and closes it."""
        pages = [_job("running")]
        with socket.create_server(("127.0.0.1", 0)) as listener:

            class Tunneled(Client):
                def status(self) -> JobStatus:
                    return pages.pop() if pages else super().status()

            thread = threading.Thread(target=lambda: listener.accept()[0].close())
            thread.start()
            output = io.StringIO()
            client = Tunneled(f"127.0.0.1:{listener.getsockname()[1]}")
            status._show(client, output, sleep=lambda seconds: None)
            thread.join(LIMIT_SECONDS)
        assert output.getvalue().endswith("The job has ended.\n")

    def test_a_terminal_gets_the_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pages: list[Client] = []
        monkeypatch.setattr(status, "_show", lambda client, output: pages.append(client))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert status.main(["127.0.0.1:1"]) == 0
        assert [client.address for client in pages] == ["127.0.0.1:1"]


@pytest.mark.parametrize(("errors", "code"), [({}, 0), ({1: "it was late"}, 1)], ids=str)
def test_a_trace_without_a_rank_is_no_success(
    errors: dict[int, str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Answering(Client):
        def trace(self, *arguments: object, **options: object) -> Trace:
            return Trace(3, 1, {0: record(0).to_text()}, errors)

    assert status._trace(Answering("localhost:1"), 1, tmp_path / "timeline.json") == code
    assert (tmp_path / "timeline.json").exists()
    assert ("rank 1 sent no record: it was late" in capsys.readouterr().err) == bool(errors)


def _job(state: str) -> JobStatus:
    return replace(job_status({}, [], 0.0), state=state)


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert status.main([f"127.0.0.1:{port}", "--json"]) == 1
    assert "Nobody listens at" in capsys.readouterr().err
    assert status.main(["nothing", "--once"]) == 1


@pytest.mark.parametrize("arguments", [[], ["a:1", "--json", "--once"], ["a:1", "--js"]])
def test_invalid_command_lines(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        status.main(arguments)
    assert ended.value.code == 2


def test_it_starts_without_tensorflow() -> None:
    program = "import sys, strategies.status; print(sorted({'keras', 'numpy', 'tensorflow'} & sys.modules.keys()))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "[]\n"
