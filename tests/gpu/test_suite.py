"""Tests that the smoke suite runs on CPU devices: its runner, its table, and with `--parity-all` every case."""

from __future__ import annotations

import os
import select
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu import __main__ as runner
from tests.gpu.cases import CASES
from tests.gpu.outcome import Outcome, judged, table
from tests.gpu.profile import describe, idle_share

#: A typical case: two devices, a check of what XLA compiles, a model that is saved whole and compared.
EVERY_TIME = ("data=2, uneven batches, with XLA",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in EVERY_TIME else [pytest.mark.parity_all]) for name in CASES],
)
def test_a_case(name: str) -> None:
    outcome = runner.run_case(name, "cpu", timeout_seconds=280)
    assert outcome.result == "ok", outcome


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(runner, "device_files", lambda: [])
    assert runner.main([]) == 0
    assert capsys.readouterr().out.startswith("There is no GPU here: nothing was run.")


def test_a_gpu_that_tensorflow_does_not_list_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(runner, "_lines", lambda code, kind: ["GPUs 0"])
    monkeypatch.setattr(runner, "device_files", lambda: ["/dev/nvidia0"])
    assert runner.main([]) == 1
    said = capsys.readouterr().out
    assert said.startswith("This machine has a GPU (/dev/nvidia0), but TensorFlow lists none: nothing was run.")
    assert "'.[gpu]'" in said
    assert "It is ''." in said


@pytest.mark.parametrize(
    ("set_to", "kind", "seen"),
    [(None, "gpu", "0"), ("2,3", "gpu", "2"), ("GPU-1a, GPU-2b", "gpu", "GPU-1a"), ("", "gpu", ""), ("2", "cpu", "-1")],
)
def test_cases_see_one_gpu(monkeypatch: pytest.MonkeyPatch, set_to: str | None, kind: str, seen: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if set_to is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", set_to)
    assert runner._environment(kind)["CUDA_VISIBLE_DEVICES"] == seen


def test_the_readme_counts_the_cases() -> None:
    assert f"There are {len(CASES)} cases." in (Path(__file__).parent / "README.md").read_text()


def test_the_extra_has_the_versions_of_the_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [needed] = [each for each in project["dependencies"] if each.startswith("tensorflow")]
    assert project["optional-dependencies"]["gpu"] == [needed.replace("tensorflow", "tensorflow[and-cuda]")]


def test_what_a_case_has_started_ends_with_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Both processes hold the other end: it closes when the last of them is gone.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        script = f"exec 3> {pipe}; echo >&3; sleep 600 & exit 7"
        assert runner.run_group(["sh", "-c", script], dict(os.environ), tmp_path / "log", timeout_seconds=60.0) == 7
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b"\n"
        assert select.select([reader], [], [], 60.0)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_case_that_takes_too_long_is_ended() -> None:
    outcome = runner.run_case("profile", "cpu", timeout_seconds=0.1)
    assert (outcome.result, outcome.note) == ("timeout", "ended after 0 s")


def test_results_are_kept_and_make_the_table_and_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "_lines", lambda code, kind: ["one", "other"])
    monkeypatch.setattr(
        runner, "run_case", lambda name, kind, seconds: judged(name, 1e-7 if name == "one" else float("nan"), 1e-5)
    )
    files = {"--table": tmp_path / "table.md", "--results": tmp_path / "results.jsonl"}
    assert runner.main(["--devices=cpu", *(f"{flag}={path}" for flag, path in files.items())]) == 1
    kept = [Outcome.from_json(line) for line in files["--results"].read_text().splitlines()]
    assert [outcome.result for outcome in kept] == ["ok", "differs"]
    assert files["--table"].read_text().rstrip() in capsys.readouterr().out
    assert runner.main(["--devices=cpu", "--case=one"]) == 0
    assert runner.main(["--devices=cpu", "--case=neither"]) == 2


def test_the_table() -> None:
    rows = [Outcome("a", ms=1.26, peak_mb=12.4), Outcome("b", "failed", note="x|y\nz")]
    assert table(rows) == (
        "| case | result | difference | allowed | ms a step | peak MB | note  |\n"
        "|------|--------|------------|---------|-----------|---------|-------|\n"
        "| a    | ok     |            |         | 1.3       | 12      |       |\n"
        "| b    | failed |            |         |           |         | x/y z |"
    )


def test_idle_time_counts_streams_together() -> None:
    assert idle_share([(0.0, 2.0), (1.0, 4.0), (8.0, 10.0)]) == pytest.approx(0.4)
    assert idle_share([(0.0, 10.0), (1.0, 2.0), (9.0, 10.0)]) == 0.0


def test_a_profile_is_described_by_its_streams() -> None:
    names = {1: SimpleNamespace(name="MemcpyH2D (pinned)"), 2: SimpleNamespace(name="gemm")}
    events = [
        SimpleNamespace(metadata_id=1, offset_ps=0, duration_ps=1000),
        SimpleNamespace(metadata_id=2, offset_ps=3000, duration_ps=1000),
    ]
    lines = [SimpleNamespace(name=name, timestamp_ns=5, events=events) for name in ("Stream #1(Compute)", "Steps")]
    planes = [SimpleNamespace(name=f"/device:GPU:{i}", event_metadata=names, lines=lines) for i in range(2)]
    description = describe(SimpleNamespace(planes=planes), "GPU:0", num_steps=2)
    assert description == "1 events a step; copies a step: MemcpyH2D 0.5; idle 50%"
    assert describe(SimpleNamespace(planes=[]), "GPU:0", num_steps=2) == "the profile has no events of GPU:0"
