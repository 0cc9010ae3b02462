"""The search finds what fits, says why the rest does not, and the program prints it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strategies import plan
from strategies.planning import Search, Transformer, gpu_of, search, step_bytes, step_time
from strategies.planning.search import RESOLUTION

A100 = gpu_of("A100")
SMALL, LARGE, HUGE = Transformer(24, 1024, 16), Transformer(32, 4096, 32), Transformer(96, 12288, 96)


def checked(model: Transformer, batch_size: int, num_devices: int) -> Search:
    """Returns a search whose results fit, use all devices, and are in order."""
    found = search(model, batch_size, num_devices, A100)
    meshes = [tuple(each.layout.mesh.values()) for each in found.best]
    assert len(set(meshes)) == len(meshes)
    for each in found.best:
        assert each.layout.num_devices == num_devices
        assert each.memory == step_bytes(model, each.layout, each.layout.num_microbatches(batch_size))
        assert each.memory.total <= found.usable_bytes
        assert each.time == step_time(model, each.layout, batch_size, A100)
        assert model.num_heads % each.layout.num_tensor == model.num_layers % each.layout.num_stages == 0
    fastest = min(each.time.total for each in found.best)
    assert found.best[0].time.total <= (1 + RESOLUTION) * fastest
    return found


def test_a_small_model_is_not_split() -> None:
    found = checked(SMALL, 64, 4)
    assert found.best[0].layout.mesh == {"data": 4, "pipe": 1, "tensor": 1}
    assert not found.splits


def test_a_model_that_does_not_fit_a_device_is_divided() -> None:
    found = checked(LARGE, 512, 8)
    assert found.splits
    assert found.refused["needs more memory than a device has"] > 100
    assert checked(HUGE, 1536, 1024).best[0].layout.num_tensor in (2, 4, 8)
    assert search(HUGE, 64, 8, A100).best == ()


def test_shards_of_layers_are_inside_hosts() -> None:
    # Three of twelve devices would be on two hosts of eight.
    found = search(Transformer(36, 7680, 60), 240, 12, A100, num_best=50)
    assert all(each.layout.num_tensor in (1, 2, 4) for each in found.best)
    assert found.refused["splits layers over several hosts"] > 0
    assert search(SMALL, 12, 6, A100, num_best=50).refused.get("splits layers over several hosts") is None


def test_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--layers=24", "--hidden=1024", "--heads=16", "--batch=64"]
    assert plan.main([*small, "--gpus=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0.4 billion parameters, A100:"
    assert lines[1].split()[:5] == ["data", "pipe", "tensor", "micro-batch", "schedule"]
    assert lines[2].split()[:3] == ["4", "1", "1"]
    assert any(line.startswith("Do not split, it fits: data parallelism takes") for line in lines)
    assert any(line.startswith("Left out: ") and "needs more memory than a device has" in line for line in lines)
    large = ["--layers=32", "--hidden=4096", "--heads=32", "--batch=512", "--gpus=64", "--gpu=H100"]
    assert plan.main([*large, "--network=ethernet-100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"][0]["seconds"]["total"] <= 1.01 * min(each["seconds"]["total"] for each in found["best"])
    assert found["best"][0]["bytes"]["total"] < found["usable_bytes"] == 0.9 * 80e9
    for each in found["best"]:
        layout = each["layout"]
        number = 512 // (layout["num_data"] * layout["num_expert"] * layout["microbatch_size"])
        if each["pipeline"] is None:
            assert (each["gradient_accumulation_steps"] or 1) == number
        else:
            assert each["pipeline"]["num_microbatches"] == number
    assert plan.main(["--layers=96", "--hidden=12288", "--heads=96", "--batch=64", "--gpus=8"]) == 1
    assert "No layout fits into 72.0 GB" in capsys.readouterr().out
    assert plan.main(["--layers=96", "--hidden=12288", "--heads=96", "--batch=64", "--gpus=8", "--scale=1,8"]) == 1
    assert plan.main(["--layers=1", "--hidden=16", "--heads=1", "--batch=12", "--gpus=8", "--host-size=2"]) == 1
    assert "No layout is possible. Choose rows" in capsys.readouterr().out


def test_scaling_shows_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--layers=32", "--hidden=4096", "--heads=32", "--batch=512", "--gpus=8"]
    assert plan.main([*large, "--scale=1,8,64,512"]) == 0
    heading, alone, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["GPUs", "rows"]
    assert alone.split() == ["1", "64", "does", "not", "fit"]
    assert [row.split()[:2] for row in rows] == [["8", "512"], ["64", "4096"], ["512", "32768"]]
    efficiency = [float(row.split()[8].rstrip("%")) for row in rows]
    assert efficiency[0] == 100
    assert all(90 < each <= 101 for each in efficiency)


def test_the_page_shows_what_the_program_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(plan.__file__).parents[1] / "docs"
    page = (docs / "guides" / "does_it_fit.md").read_text()
    commands = re.findall(r"```text\n\$ python -m strategies.plan (.*?)\n(.*?)```", page, flags=re.DOTALL)
    assert len(commands) == 5
    for flags, printed in commands:
        assert plan.main(flags.split()) == 0
        assert capsys.readouterr().out.strip() == printed.strip()
    monkeypatch.chdir(tmp_path)
    assert plan.main([*commands[1][0].split(), "--svg=plan.svg"]) == 0
    assert Path("plan.svg").read_text() == (docs / "pictures" / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--heads=7", "--gpus=4"], "multiple of the number of heads"),
        (["--heads=16", "--gpus=0"], "at least 1"),
        (["--heads=16", "--gpus=4", "--gpu=T4"], "invalid choice"),
        (["--gpus=4"], "Missing: --heads"),
        (["--gpus=4", "--resnet=50"], "leave one of the two out"),
        (["--heads=16", "--gpus=4", "--svg=step.png"], "ends in .svg. Received: 'step.png'"),
        (["--heads=16", "--gpus=4", "--experts=2", "--top-k=3"], "1 to all experts"),
        (["--heads=16", "--gpus=4", "--mesh=pipe=4"], "Give --dry-run, too. Received: --mesh"),
        (["--heads=16", "--gpus=4", "--scale=1,2", "--json"], "one of these at a time. Received: --scale, --json"),
        (["--heads=16", "--gpus=4", "--scale=a"], "numbers of GPUs from 1, such as 8,64,512. Received: a"),
        (["--heads=16", "--gpus=0", "--scale=1,2"], "64 rows on 0 GPUs"),
        (["--heads=16", "--gpus=48", "--scale=1"], "whole number of rows"),
        (["--heads=16", "--gpus=4", "--dry-run", "--micro-batch=0"], "at least 1"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan.main(["--layers=24", "--hidden=1024", "--batch=64", *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
