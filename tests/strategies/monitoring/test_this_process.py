"""The start of a reporter, by the environment. With several ranks: `test_training`."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strategies.control_plane import Member
from strategies.monitoring import this_process
from strategies.monitoring.client import Client
from strategies.monitoring.rank_reporter import Probes
from strategies.monitoring.store import FolderStore

LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, whose functions for its end run after the test."""
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(this_process, "_reporter", None)
    monkeypatch.setattr(this_process, "_has_begun", False)
    monkeypatch.setattr(atexit, "register", ends.append)
    for name in ("PORT", "HOST", "TOKEN", "DIR"):
        monkeypatch.delenv(f"STRATEGIES_STATUS_{name}", raising=False)
    yield
    for end in reversed(ends):
        end()


def test_nobody_watches() -> None:
    this_process.watch(Member(0, 1), Probes())
    assert this_process.reporter() is None


def test_under_our_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank whose strategy knows no other process has the rank that the launcher gave it."""
    monkeypatch.setenv("STRATEGIES_STATUS_DIR", str(tmp_path))
    monkeypatch.setenv("STRATEGIES_STATUS_PORT", "1")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    this_process.watch(Member(0, 1), Probes())
    reporter = this_process.reporter()
    assert reporter is not None
    reporter.stop()
    assert list(FolderStore(tmp_path).read("rank")) == [3]
    # A second strategy of the process only replaces the probes.
    probes = Probes()
    this_process.watch(Member(0, 1), probes)
    assert this_process.reporter() is reporter
    assert reporter.probes is probes


def test_a_child_of_a_rank_does_not_report_as_the_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATEGIES_STATUS_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    this_process.watch(Member(0, 1), Probes())
    program = (
        "from strategies import monitoring; from strategies.control_plane import Member; "
        "monitoring.watch(Member(0, 1), monitoring.Probes()); print(monitoring.reporter())"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    assert (ended.stdout, ended.stderr) == ("None\n", "")
    # Another rank, as a next one of this folder, does report.
    environment["RANK"] = "2"
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    assert "Reporter" in ended.stdout
    assert sorted(FolderStore(tmp_path).read("rank")) == [2, 3]


def test_a_process_alone_serves_itself(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STRATEGIES_STATUS_PORT", "0")
    this_process.watch(Member(0, 1), Probes())
    line = capfd.readouterr().err
    assert line.startswith("strategies: status: http://127.0.0.1:")
    client = Client(line.split()[2])
    reporter = this_process.reporter()
    assert reporter is not None
    reporter.stop()
    assert client.status().world_size == 1


@pytest.mark.parametrize("reason", ["a port in use", "no token", "no port", "no folder"])
def test_what_cannot_be_shown_does_not_end_a_training(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"a port in use": "cannot listen", "no token": "Set STRATEGIES_STATUS_TOKEN", "no port": "must be a port"}
    with socket.create_server(("127.0.0.1", 0)) as other, caplog.at_level(logging.WARNING):
        port = other.getsockname()[1] if reason == "a port in use" else "x" if reason == "no port" else 0
        monkeypatch.setenv("STRATEGIES_STATUS_PORT", str(port))
        if reason == "no token":
            monkeypatch.setenv("STRATEGIES_STATUS_HOST", "0.0.0.0")
        if reason == "no folder":
            monkeypatch.setenv("STRATEGIES_STATUS_DIR", "/nowhere")
        this_process.watch(Member(0, 1), Probes())
        reporter = this_process.reporter()
        if reporter is not None:
            reporter.stop()
    assert len(caplog.records) == 1
    assert said.get(reason, "This rank cannot report its status") in caplog.text
