"""The doctor reports the installation, problems and their fixes, and never waits for ever."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from strategies import doctor
from tests.processes import ROOT, Programs, cluster_environments, horovodrun, launcher, python
from tests.strategies.launching import OURS, wait_until_gone

LIMIT_SECONDS = 400
DOCTOR = ["-m", "strategies.doctor"]


@pytest.fixture(autouse=True)
def _no_other_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if OURS.match(name) or name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def reports(output: str) -> list[dict[str, Any]]:
    """Returns the lines of JSON in the output of all ranks, by rank."""
    found = [json.loads(text) for text in re.findall(r'\{"problems".*\}$', output, flags=re.MULTILINE)]
    return sorted(found, key=lambda report: int(report["rank"]))


def finished(folder: Path, command: list[str], environment: dict[str, str] | None = None) -> tuple[int | None, str]:
    """Runs one command; returns the exit code (None: it took too long) and the output."""
    with Programs(folder, [command], [environment or {}]) as programs:
        [code] = programs.wait(LIMIT_SECONDS)
        return code, programs.output(limit=40000)


def test_one_process(tmp_path: Path) -> None:
    code, output = finished(tmp_path, python(*DOCTOR))
    assert code == 0, output
    assert output.endswith("No problems found.\n")
    versions = (f"tensorflow: {version('tensorflow')}", f"keras: {version('keras')}")
    for words in ("rank 0, host ", *versions, "horovod\n  installed: 0.28.1", "world_size: 1"):
        assert words in output
    assert "hint: this is a single process." in output
    assert "Traceback" not in output


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    "by", ["MultiWorkerMirroredStrategy", pytest.param("HorovodStrategy", marks=pytest.mark.parity_all)]
)
def test_two_processes_measure(by: str, tmp_path: Path) -> None:
    flags = [*DOCTOR, "--json", "--max-mb", "1"]
    command = horovodrun(2, flags) if by == "HorovodStrategy" else launcher(2, flags)
    code, output = finished(tmp_path, command)
    assert code == 0, output
    first, second = reports(output)
    assert first["problems"] == second["problems"] == []
    assert (first["processes"]["rank"], second["processes"]["rank"]) == (0, 1)
    assert "versions" in first
    assert "versions" not in second
    assert len(first["logical_devices"]["local"]) == 1
    assert first["all_reduce"]["by"] == by
    assert first["all_reduce"]["latency in microseconds"] > 0
    assert list(first["all_reduce"]["GB/s"]) == ["0.1 MB", "1 MB"]
    assert all(rate > 0 for rate in first["all_reduce"]["GB/s"].values())
    assert first["all_reduce"]["implementation"] == ("Gloo" if by == "HorovodStrategy" else "ring")
    assert first["all_reduce"]["devices"] == ["/device:CPU:0"]
    assert list(first["all_reduce"]["GB/s of 1 MB"]) == ["float32", "bfloat16", "int32", "int64"]
    assert all(rate > 0 for rate in first["all_reduce"]["GB/s of 1 MB"].values())


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    ("by", "mesh", "axis", "how"),
    [
        # Two devices in each process: the shards of its stage.
        ("MultiWorkerMirroredStrategy", "tensor=2,pipe=2", "pipe", "send/recv"),
        pytest.param("HorovodStrategy", "tensor=2", "tensor", "all-reduce", marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", "data=-1,pipe=2", "pipe", "send/recv", marks=pytest.mark.parity_all),
        pytest.param("HorovodStrategy", "data=2", "data", "all-reduce", marks=pytest.mark.parity_all),
    ],
)
def test_an_axis_across_processes_is_measured(by: str, mesh: str, axis: str, how: str, tmp_path: Path) -> None:
    flags = [*DOCTOR, "--json", "--max-mb", "0.1", f"--mesh={mesh}"]
    command = horovodrun(2, flags) if by == "HorovodStrategy" else launcher(2, flags)
    code, output = finished(tmp_path, command)
    assert code == 0, output
    for report in reports(output):
        assert report["problems"] == []
        assert list(report["mesh_axes"]) == [axis]
        found = report["mesh_axes"][axis]
        assert (found["by"], found["processes"], list(found["GB/s"])) == (how, 2, ["0.1 MB"])
        assert found["latency in microseconds"] > 0
        assert found["GB/s"]["0.1 MB"] > 0


def test_a_malformed_environment_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": ')
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "PROBLEM: TF_CONFIG is not JSON" in output
    assert output.endswith("1 problem(s), see above.\n")
    assert "Traceback" not in output


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    environment = cluster_environments(2)[1]
    command = python(*DOCTOR, "--json", "--timeout-seconds", "8")
    code, output = finished(tmp_path, command, environment)
    assert code == 1, output
    [report] = reports(output)
    [problem] = report["problems"]
    assert problem.startswith("rank 1 of 2, MultiWorkerMirroredStrategy: the connection to the other processes was not")
    assert "No answer from rank 0 at 127.0.0.1:" in problem
    assert "Start all ranks with the same command" in problem
    assert "Traceback" not in output


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_ended_by_its_launcher_it_leaves_nothing_behind(tmp_path: Path) -> None:
    process = psutil.Popen(
        [sys.executable, *DOCTOR],
        cwd=ROOT,
        env=os.environ | cluster_environments(2)[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    family: list[psutil.Process] = []
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while not family and time.monotonic() < end and process.is_running():
            time.sleep(0.02)
            # Others of its children end meanwhile.
            with contextlib.suppress(psutil.Error):
                family = [child for child in process.children() if "--exchange" in child.cmdline()]
        assert family
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
        wait_until_gone(child.pid for child in family)
    finally:
        for member in [process, *family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait(LIMIT_SECONDS)


@pytest.mark.parametrize(
    "flags", [["--max-mb", "0"], ["--max-mb", "many"], ["--timeout-seconds", "inf"], ["--mesh", "rows=2"], ["--js"]]
)
def test_flags_that_will_not_do(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(flags)
    assert ended.value.code == 2
    assert "strategies.doctor: error" in capsys.readouterr().err
