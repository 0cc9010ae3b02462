"""The folder of a job, where ranks leave tracebacks: it stays only if the job failed and the folder is not empty."""

import os
import re
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from strategies.launching.folder import JobFolder
from strategies.launching.ports import LaunchError
from tests.processes import ROOT
from tests.strategies.launching import last_line, launched, nodes, ready, written

# Leaves a traceback as the engine does, and exits with a code.
LEAVES = """
import os, pathlib, sys, time
folder, rank = pathlib.Path(os.environ["STRATEGIES_TRACEBACK_DIR"]), os.environ["RANK"]
print(folder)
(folder / f"rank-{rank}.txt").write_text("Traceback")
"""


def left_in(folder: Path) -> list[str]:
    """Returns the names of all files below the temporary folder of a test."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Returns an empty folder that replaces /tmp."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


class TestFolder:
    @pytest.fixture(autouse=True)
    def own_place(self, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def test_only_its_user_enters(self, temporary: Path) -> None:
        path = Path(JobFolder().path)
        assert (path.parent, path.name[:11]) == (temporary, "strategies-")
        assert stat.S_IMODE(path.stat().st_mode) == 0o700

    @pytest.mark.parametrize("ended_well", [False, True])
    @pytest.mark.parametrize("text", [None, "", "Traceback"])
    def test_stays_only_with_tracebacks_of_a_failure(self, text: str | None, ended_well: bool, temporary: Path) -> None:
        folder = JobFolder()
        path = Path(folder.path)
        if text is not None:
            (path / "rank-0.txt").write_text(text)
        stays = text == "Traceback" and not ended_well
        assert folder.close(ended_well=ended_well) == (path if stays else None)
        assert path.exists() == stays
        assert bool(left_in(temporary)) == stays

    @pytest.mark.parametrize("ended_well", [False, True])
    def test_may_be_gone(self, ended_well: bool) -> None:
        folder = JobFolder()
        Path(folder.path).rmdir()
        assert folder.close(ended_well=ended_well) is None

    def test_without_a_place_for_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        with pytest.raises(LaunchError, match=r"cannot be made: .*nowhere.* set TMPDIR"):
            JobFolder()


def test_stays_after_a_failure_and_is_named_before_the_cause(temporary: Path, tmp_path: Path) -> None:
    path = written(tmp_path, LEAVES + "if rank == '1': sys.exit(3)\ntime.sleep(1000)")
    done = launched("--nproc-per-node", "2", path, environment={"TMPDIR": str(temporary)})
    assert done.returncode == 3
    (folder,) = temporary.iterdir()
    assert b"[1] %s\n" % bytes(folder) in done.stdout
    assert (folder / "rank-1.txt").read_text() == "Traceback"
    expected = f"strategies.launch: tracebacks of the ranks: {folder}"
    assert done.stderr.decode().splitlines()[-2] == expected
    assert "failed with exit code 3" in last_line(done.stderr)


def test_is_one_for_all_restarts_and_goes_with_success(temporary: Path, tmp_path: Path) -> None:
    path = written(tmp_path, LEAVES + "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    done = launched("--max-restarts", "1", path, environment={"TMPDIR": str(temporary)})
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first == second
    assert left_in(temporary) == []
    assert b"tracebacks" not in done.stderr


# Imitates a program under our strategies whose rank 1 leaves: rank 0 sees that, records the reason and fails.
GIVES_A_REASON = """
import os, pathlib, sys, time
from strategies.topology import rank_end
rank = int(os.environ["RANK"])
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
here = pathlib.Path(__file__ + restart)
if rank == 1:
    here.with_suffix(".part").write_text(str(os.getpid()))
    here.with_suffix(".part").replace(here)
    sys.exit(0)
while not here.exists() or ") Z " not in pathlib.Path("/proc", here.read_text(), "stat").read_text():
    time.sleep(0.01)
if restart == "0":
    rank_end.leave_reason(rank, "Rank 1 called sys.exit(0),\\nin round " + restart)
sys.exit(3)
"""


def test_the_reason_is_the_last_line_and_of_its_own_round(temporary: Path, tmp_path: Path) -> None:
    path = written(tmp_path, GIVES_A_REASON)
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    done = launched("--nproc-per-node", "2", "--max-restarts", "1", path, environment=environment)
    restart, verdict, reason = [line for line in done.stderr.decode().splitlines() if line.startswith("strategies.l")]
    early = "Before it, with exit code 0, ended: rank 1."
    assert re.search(r"rank 0 \(pid \d+\) failed with exit code 3; restart 1 of 1, with 2 processes\. ", restart)
    assert restart.endswith(f" The reason: Rank 1 called sys.exit(0), in round 0 {early}")
    assert "failed with exit code 3" in verdict
    assert reason == f"strategies.launch: the reason: {early}"
    assert left_in(temporary) == []


def test_an_empty_one_goes_after_a_failure_too(temporary: Path, tmp_path: Path) -> None:
    done = launched(written(tmp_path, "raise SystemExit(4)"), environment={"TMPDIR": str(temporary)})
    assert (done.returncode, left_in(temporary)) == (4, [])
    assert b"tracebacks" not in done.stderr


def test_the_launchers_own_variable_is_replaced(temporary: Path, tmp_path: Path) -> None:
    path = written(tmp_path, "import os\nprint(os.environ['STRATEGIES_TRACEBACK_DIR'])")
    done = launched(path, environment={"TMPDIR": str(temporary), "STRATEGIES_TRACEBACK_DIR": "/another"})
    assert done.stdout.startswith(b"[0] %s/strategies-" % bytes(temporary))


def test_one_on_each_node(tmp_path: Path) -> None:
    code = LEAVES + "print('ready', os.getpid(), file=sys.stderr)\ntime.sleep(1000)"
    with nodes(written(tmp_path, code)) as launchers:
        os.kill(ready(launchers)[2], signal.SIGKILL)
        ends = [launcher.end() for launcher in launchers]
        folders = [Path(stdout.split()[1].decode()) for _, stdout, _ in ends]
        assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [
            ["rank-0.txt"],
            ["rank-1.txt", "rank-2.txt"],
        ]
    for folder, (_, _, stderr) in zip(folders, ends, strict=True):
        assert f"tracebacks of the ranks: {folder}\n".encode() in stderr
