"""Jobs that restart: after a failure, after a preemption, without a lost node. The programs are small and plain."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from strategies.topology.rank_end import PREEMPTED
from tests.strategies.launching import (
    TIMEOUT_SECONDS,
    Clocked,
    Running,
    last_line,
    launched,
    name,
    nodes,
    wait_until_gone,
    written,
)

# Each start is noted in a file of its own; the program goes on when all ranks have written theirs.
PROGRAM = """
import json, os, pathlib, signal, sys, time
{first}
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
rank, world, group, local, count, limit = (int(os.environ[name]) for name in names)
config = json.loads(os.environ["TF_CONFIG"])
folder = pathlib.Path({folder!r})
start = len(list(folder.glob(f"{{rank}}.*")))
workers, index = config["cluster"]["worker"], config["task"]["index"]
record = [time.time(), os.getpid(), world, group, local, count, limit, workers, index]
(folder / "new").mkdir(exist_ok=True)
(folder / "new" / f"{{rank}}").write_text(json.dumps(record))
(folder / "new" / f"{{rank}}").rename(folder / f"{{rank}}.{{start}}")
while not all((folder / f"{{r}}.{{start}}").exists() for r in range(world)):
    time.sleep(0.01)
print("ready", os.getpid(), file=sys.stderr)
def run(seconds=1000):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
{code}
"""
# For ranks that end by themselves, however long it takes.
PATIENT = ("--grace-seconds", "1000")
PREEMPTIBLE = "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, lambda *_: sys.exit(75))"


def program(folder: Path, code: str, first: str = "") -> str:
    """Writes the program that runs `first`, notes its start, and runs `code`; returns its path."""
    starts = folder / "starts"
    starts.mkdir()
    return written(folder, PROGRAM.format(folder=str(starts), first=first, code=code))


def read_start(folder: Path, rank: int, start: int) -> list[Any]:
    """Returns the notes of one start of a rank, as soon as they exist."""
    path = folder / "starts" / f"{rank}.{start}"
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.005)
    return list(json.loads(path.read_text()))


class TestRestarts:
    def test_up_to_the_limit_then_as_without(self, tmp_path: Path) -> None:
        path = program(tmp_path, "if rank == 1: sys.exit(7)\nrun()")
        done = launched("--nproc-per-node", "2", "--max-restarts", "2", path)
        assert done.returncode == 7
        said = [line.partition(b") ")[2] for line in done.stderr.splitlines() if b"; restart " in line]
        assert said == [b"failed with exit code 7; restart %d of 2, with 2 processes." % count for count in (1, 2)]
        assert last_line(done.stderr).endswith("failed with exit code 7 and the others of this node were terminated.")
        starts = [[read_start(tmp_path, rank, start) for rank in (0, 1)] for start in range(3)]
        assert len(list((tmp_path / "starts").glob("?.?"))) == 6
        for start, notes in enumerate(starts):
            assert [note[2:7] for note in notes] == [[2, 0, 0, start, 2], [2, 0, 1, start, 2]]
            assert notes[0][7] == notes[1][7]
        assert len({address for notes in starts for address in notes[0][7]}) == 6

    def test_a_job_that_succeeds_after_a_restart_is_a_success(self, tmp_path: Path) -> None:
        path = program(tmp_path, "if rank == 0 and count == 0: os.kill(os.getpid(), signal.SIGKILL)")
        done = launched("--max-restarts", "1", path)
        assert done.returncode == 0
        assert b"failed with signal SIGKILL (9) (by the system, if memory ran out); restart 1 of 1, with" in done.stderr

    def test_a_restart_waits_for_no_time_to_pass(self, tmp_path: Path) -> None:
        with Clocked("--nproc-per-node", "2", "--max-restarts", "3", program(tmp_path, "run()")) as launcher:
            for start in range(3):
                launcher.ready(2 * start + 2)
                os.kill(read_start(tmp_path, 1, start)[1], signal.SIGKILL)
            launcher.ready(8)

    def test_peers_that_are_stuck_are_killed_after_two_seconds(self, tmp_path: Path) -> None:
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        path = program(tmp_path, "if count: sys.exit()\nif rank == 1: sys.exit(3)\nrun()", deaf)
        with Clocked("--nproc-per-node", "2", "--max-restarts", "1", path) as launcher:
            stuck, failed = (read_start(tmp_path, rank, 0)[1] for rank in (0, 1))
            wait_until_gone([failed])
            launcher.advance(0)
            launcher.advance(1.9)
            assert psutil.pid_exists(stuck)
            launcher.advance(0.1)
            assert launcher.end()[0] == 0
        assert len(list((tmp_path / "starts").glob("?.?"))) == 4

    def test_all_nodes_start_again(self, tmp_path: Path) -> None:
        path = program(tmp_path, "if rank == 2 and not count: sys.exit(3)\nrun(0 if count else 1000)")
        with nodes(path, "--max-restarts", "1") as launchers:
            ends = [launcher.end() for launcher in launchers]
        assert [code for code, _, _ in ends] == [0, 0]
        line = f"rank 2 on {name(1)} failed with exit code 3; restart 1 of 1, with 3 processes."
        assert all(f"strategies.launch: {line}\n".encode() in stderr for _, _, stderr in ends)
        assert [read_start(tmp_path, rank, 1)[2:7] for rank in range(3)] == [
            [3, 0, 0, 1, 1],
            [3, 1, 0, 1, 1],
            [3, 1, 1, 1, 1],
        ]

    def test_fewer_nodes_go_on(self, tmp_path: Path) -> None:
        """Loses the node in the middle: the last node takes its rank, and its processes are renumbered."""
        code = "run(0 if count else 1000)"
        sizes = (1, 1, 2)
        with nodes(program(tmp_path, code), "--max-restarts", "1", "--min-procs", "3", sizes=sizes) as launchers:
            before = [read_start(tmp_path, rank, 0) for rank in range(4)]
            launchers[1].process.kill()
            ends = [launchers[at].end() for at in (0, 2)]
            wait_until_gone(note[1] for note in before)
        assert [code for code, _, _ in ends] == [0, 0]
        for _, _, stderr in ends:
            assert f"{name(1)} is gone: ".encode() in stderr
            assert b"; restart 1 of 1, with 3 processes.\n" in stderr
        after = [read_start(tmp_path, rank, 1) for rank in range(3)]
        assert [note[2:7] for note in after] == [[3, 0, 0, 1, 1], [3, 1, 0, 1, 1], [3, 1, 1, 1, 1]]
        assert [note[8] for note in after] == [0, 1, 2]
        assert len({tuple(note[7]) for note in after}) == 1

    def test_a_signal_ends_it_for_good(self, tmp_path: Path) -> None:
        with Running("--max-restarts", "3", program(tmp_path, "run()")) as launcher:
            launcher.ready(1)
            launcher.process.send_signal(signal.SIGINT)
            assert launcher.end()[0] == 130
        assert len(list((tmp_path / "starts").glob("?.?"))) == 1


class TestPreemption:
    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_of_a_job(self, signum: signal.Signals, tmp_path: Path) -> None:
        path = program(tmp_path, "run()", PREEMPTIBLE)
        with Running("--nproc-per-node", "2", "--max-restarts", "3", *PATIENT, path) as launcher:
            launcher.ready(2)
            launcher.process.send_signal(signum)
            code, _, stderr = launcher.end()
        assert code == PREEMPTED
        assert last_line(stderr) == (
            f"ended by {signum.name} ({signum.value}); all ranks ended with exit code 0 or 75: the job can go on, with "
            f"the same command."
        )

    def test_of_a_job_of_several_nodes(self, tmp_path: Path) -> None:
        with nodes(program(tmp_path, "run()", PREEMPTIBLE), *PATIENT) as launchers:
            launchers[1].ready(2)
            launchers[0].ready(1)
            launchers[1].process.send_signal(signal.SIGTERM)
            for code, _, stderr in [launcher.end() for launcher in launchers]:
                assert code == PREEMPTED
                assert last_line(stderr).startswith(f"{name(1)} was ended by SIGTERM (15); all ranks ended with")

    @pytest.mark.parametrize("max_restarts", [0, 1])
    def test_of_a_rank(self, max_restarts: int, tmp_path: Path) -> None:
        """Imitates ranks that agree on a step: one rank is signalled, and all end, at different moments."""
        code = "if start == 0: time.sleep(0.3 * rank); sys.exit(75)"
        path = program(tmp_path, code)
        done = launched("--nproc-per-node", "2", "--max-restarts", str(max_restarts), *PATIENT, path)
        if max_restarts:
            assert done.returncode == 0
            assert b"was preempted (exit code 75); not counted as a restart, with 2 processes.\n" in done.stderr
            assert [read_start(tmp_path, rank, 1)[5] for rank in (0, 1)] == [0, 0]
        else:
            assert done.returncode == PREEMPTED
            assert last_line(done.stderr).endswith("the job can go on, with the same command.")

    def test_one_that_does_not_follow_is_a_failure(self, tmp_path: Path) -> None:
        code = "if rank == 0: sys.exit(75)\nrun()"
        done = launched("--nproc-per-node", "2", "--grace-seconds", "0.5", program(tmp_path, code))
        assert done.returncode == 1
        assert "did not end within 0.5 s after another rank was preempted" in last_line(done.stderr)

    def test_a_node_leaves_and_the_others_go_on(self, tmp_path: Path) -> None:
        path = program(tmp_path, "run(1000 if start == 0 else 0)", PREEMPTIBLE)
        with nodes(path, "--min-procs", "1", *PATIENT) as launchers:
            launchers[0].ready(1)
            launchers[1].ready(2)
            launchers[1].process.send_signal(signal.SIGTERM)
            (first, _, said), (second, _, left) = [launcher.end() for launcher in launchers]
        assert (first, second) == (0, PREEMPTED)
        assert (
            f"{name(1)} was ended by SIGTERM (15) and has left; not counted as a restart, with 1 process.".encode()
            in said
        )
        assert last_line(left).endswith("the job goes on without it.")
        assert read_start(tmp_path, 0, 1)[2:7] == [1, 0, 0, 0, 0]


def test_the_launcher_ends_with_its_last_rank(tmp_path: Path) -> None:
    """Nothing but the ends of ranks ends its waits: its clock stands still."""
    with Clocked("--nproc-per-node", "2", written(tmp_path, "")) as launcher:
        assert launcher.end()[0] == 0
