"""The doctor says what runs here, what is wrong and how to mend it, and never waits for ever."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest

from strategies import doctor
from strategies.doctor import Report, check_addresses, check_horovod, in_parallel
from strategies.topology.cluster import Cluster
from tests.processes import ROOT, Programs, cluster_environments, free_ports, horovodrun
from tests.strategies.launching import OURS, wait_until_gone

LIMIT_SECONDS = 200
DOCTOR = ["-m", "strategies.doctor"]


@pytest.fixture(autouse=True)
def _no_other_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if OURS.match(name) or name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def reports(output: str) -> list[dict[str, Any]]:
    """The lines of JSON in what all ranks have printed, by rank."""
    found = [json.loads(text) for text in re.findall(r'\{"problems".*\}$', output, flags=re.MULTILINE)]
    return sorted(found, key=lambda report: int(report["rank"]))


def finished(folder: Path, command: list[str], environment: dict[str, str] | None = None) -> tuple[int | None, str]:
    """The exit code (None: it took too long) and the output of one command."""
    with Programs(folder, [command], [environment or {}]) as programs:
        [code] = programs.wait(LIMIT_SECONDS)
        return code, programs.output(limit=40000)


def test_one_process(tmp_path: Path) -> None:
    code, output = finished(tmp_path, [sys.executable, *DOCTOR])
    assert code == 0, output
    assert output.endswith("All well.\n")
    for words in ("rank 0, host ", "tensorflow: 2.21", "keras: 3.15", "horovod\n  installed: 0.28.1", "world_size: 1"):
        assert words in output
    assert "hint: this is one process." in output
    assert "Traceback" not in output


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("by", ["MultiWorkerMirroredStrategy", "HorovodStrategy"])
def test_two_processes_measure(by: str, tmp_path: Path) -> None:
    flags = [*DOCTOR, "--json", "--max-mb", "1"]
    if by == "HorovodStrategy":
        command = horovodrun(2, flags)
    else:
        command = [sys.executable, "-m", "strategies.launch", "--nproc-per-node", "2", *flags]
    code, output = finished(tmp_path, command)
    assert code == 0, output
    first, second = reports(output)
    assert first["problems"] == second["problems"] == []
    assert (first["processes"]["rank"], second["processes"]["rank"]) == (0, 1)
    assert "versions" in first
    assert "versions" not in second
    assert len(first["logical_devices"]["here"]) == 1
    assert first["all_reduce"]["by"] == by
    assert first["all_reduce"]["latency in microseconds"] > 0
    assert list(first["all_reduce"]["GB/s"]) == ["0.1 MB", "1 MB"]
    assert all(rate > 0 for rate in first["all_reduce"]["GB/s"].values())


def test_a_malformed_environment_is_a_problem(tmp_path: Path) -> None:
    code, output = finished(tmp_path, [sys.executable, *DOCTOR], {"TF_CONFIG": '{"cluster": '})
    assert code == 1
    assert "PROBLEM: TF_CONFIG is not JSON" in output
    assert output.endswith("1 problem(s), see above.\n")
    assert "Traceback" not in output


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    environment = cluster_environments(2)[1]
    command = [sys.executable, *DOCTOR, "--json", "--timeout-seconds", "8"]
    code, output = finished(tmp_path, command, environment)
    assert code == 1, output
    [report] = reports(output)
    [problem] = report["problems"]
    assert problem.startswith("rank 1 of 2, MultiWorkerMirroredStrategy: joins the other processes, and was not done")
    assert "Nobody answers for rank 0 at 127.0.0.1:" in problem
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
            time.sleep(0.1)
            family = [child for child in process.children() if "--exchange" in child.cmdline()]
        assert family
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        wait_until_gone(child.pid for child in family)
    finally:
        for member in [process, *family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait(30)


def test_a_port_in_use_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, [other] = taken.getsockname()[1], free_ports(1)
        report = Report(as_json=True)
        assert not check_addresses(Cluster.of_addresses([f"127.0.0.1:{port}", f"127.0.0.1:{other}"], 0, "X"), report)
    [problem] = report.found["problems"]
    assert f"rank 0 is to listen at 127.0.0.1:{port}, and cannot" in problem
    assert "write another port, on all ranks, in X" in problem


def test_a_host_without_an_address_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: object) -> list[object]:
        if host == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    own, *others = free_ports(3)
    addresses = [f"here:{own}", f"nowhere:{others[0]}", f"nowhere:{others[1]}"]
    report = Report(as_json=True)
    assert not check_addresses(Cluster.of_addresses(addresses, 0, "TF_CONFIG"), report)
    [problem] = report.found["problems"]
    assert "the host 'nowhere' of rank 1, 2 is not known here: [Errno -2] Name or service not known" in problem


def test_free_ports_and_known_hosts_are_none() -> None:
    report = Report(as_json=True)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    assert check_addresses(Cluster.of_addresses([*addresses, "[::1]:2222"], 0), report)
    assert check_addresses(Cluster(world_size=2, source="HOROVOD"), report)
    assert report.close() == 0


def test_what_does_not_answer_is_not_waited_for() -> None:
    never = threading.Event()
    wrong = in_parallel(lambda item: never.wait(30) if item == "slow" else None, ["slow", "fast"], timeout_seconds=0.2)
    never.set()
    assert wrong == {"slow": "no answer in 0.2 s"}


def test_a_horovod_of_another_tensorflow_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: "0.28.1+tf2.20.0.gloo.r01234567")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report(as_json=True)
    check_horovod(report)
    [problem] = report.found["problems"]
    assert "was built for another TensorFlow" in problem
    assert problem.endswith("python -m strategies.install_horovod")


def test_a_horovod_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: "0.28.1")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report(as_json=True)
    check_horovod(report)
    assert report.found["problems"][0].startswith("Horovod 0.28.1 does not work here: exit code 1.")


def test_without_horovod_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    report = Report(as_json=True)
    check_horovod(report)
    assert report.found["horovod"] == {"installed": False, "to install": "python -m strategies.install_horovod"}
    assert report.close() == 0


def test_other_releases_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WRITTEN_FOR", {"tensorflow": "2.2"})
    report = Report(as_json=True)
    doctor.check_versions(report)
    assert "tensorflow 2.21" in report.found["problems"][0]
    assert "pip install 'tensorflow==2.2.*'" in report.found["problems"][0]


def test_the_releases_are_those_of_pyproject() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, release in doctor.WRITTEN_FOR.items():
        assert any(line.startswith(f"{name}>={release},") for line in wanted)


def test_threads_for_all_cores_in_each_process_are_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    report = Report(as_json=True)
    doctor.check_machine(Cluster(world_size=2, local_size=2, source="HOROVOD"), report)
    assert "TF_NUM_INTRAOP_THREADS=2" in report.found["hints"][0]
    assert report.close() == 0


@pytest.mark.parametrize("flags", [["--max-mb", "0"], ["--max-mb", "many"], ["--timeout-seconds", "inf"], ["--js"]])
def test_flags_that_will_not_do(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(flags)
    assert ended.value.code == 2
    assert "strategies.doctor: error" in capsys.readouterr().err
