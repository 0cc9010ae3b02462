"""``python -m strategies.plan --dry-run``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strategies import plan

SMALL = ["--layers=16", "--hidden=1024", "--heads=16", "--batch=64", "--gpus=8", "--dry-run"]


def printed(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert plan.main(flags) == 0
    return capsys.readouterr().out


def test_the_best_mesh_and_a_named_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "8 ranks on 1 host, mesh data=8, pipe=1, tensor=1" in printed(SMALL, capsys)
    text = printed([*SMALL, "--mesh=pipe=2,tensor=2,data=-1", "--host-size=4", "--micro-batch=4"], capsys)
    assert "8 ranks on 2 hosts, mesh data=2, pipe=2, tensor=2" in text
    assert "micro-batches of 4 rows" in text


def test_a_mesh_on_which_the_planner_has_no_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that do not divide into stages."""
    assert "pipe=3" in printed([*SMALL[:4], "--gpus=3", "--dry-run", "--mesh=pipe=3"], capsys)


def test_a_planted_imbalance(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed([*SMALL, "--mesh=data=2,pipe=4", "--stages=3,6,4,3"], capsys)
    assert "Position 1 along 'pipe' computes" in text
    assert "The most even stages are --stages=" in text


@pytest.mark.parametrize(("schedule", "shard"), [("zb_v", "optimizer"), ("gpipe", "weights"), ("v_half", "gradients")])
def test_schedules_and_shards(schedule: str, shard: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed([*SMALL, "--mesh=data=2,pipe=4", f"--schedule={schedule}", f"--shard={shard}", "--json"], capsys)
    found = json.loads(text)
    assert found["job"]["schedule"] == schedule
    assert found["job"]["layout"]["shard"] == shard
    assert found["deadlock"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mesh=data=3"], "Nearest sizes that fit"),
        (["--mesh=rows=8"], "expected axes"),
        (["--mesh=data=4,expert=2"], "has the axes data, pipe and tensor"),
        (["--mesh=pipe=8", "--stages=a,b"], "numbers of blocks"),
        (["--mesh=pipe=8", "--stages=9,7"], "has 8 stages"),
        (["--gpus=1", "--batch=4096", "--layers=900"], "No mesh fits"),
        (["--schedule=2f2b"], "invalid choice"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan.main([*SMALL, *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_page_shows_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(plan.__file__).parents[1] / "docs" / "guides" / "choose_a_mesh.md").read_text()
    [block] = re.findall(r"```text\n(\$ python -m strategies.plan .*?)```", page, flags=re.DOTALL)
    commands = re.split(r"^\$ python -m strategies.plan (.*)\n", block, flags=re.MULTILINE)[1:]
    assert len(commands) == 4
    for flags, shown in zip(commands[::2], commands[1::2], strict=True):
        assert printed(flags.split(), capsys).strip() == shown.strip()
