"""docs/coming_from/accelerate_and_deepspeed.md: a program of torch with accelerate, and ours on two devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.coming_from.programs import (
    LIMIT_SECONDS,
    OTHER_FRAMEWORK,
    PAGES,
    PROGRAMS,
    by_launcher,
    changed,
    interpreter_with,
    losses,
    output,
    same,
)
from tests.processes import launcher

PAGE = (PAGES / "accelerate_and_deepspeed.md").read_text()

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)


def test_ours_prints_the_losses_of_the_page(tmp_path: Path) -> None:
    assert same(output(tmp_path, by_launcher("accelerate_after.py")), losses(PAGE))


@pytest.mark.parity_all
@pytest.mark.parametrize("shard", ["optimizer", "gradients", "weights"])
def test_every_stage_of_zero_prints_them(shard: str, tmp_path: Path) -> None:
    changes = {"MultiWorkerMirroredStrategy()": f'MultiWorkerMirroredStrategy(shard="{shard}")'}
    program = changed(tmp_path, "accelerate_after.py", changes)
    assert same(output(tmp_path, launcher(2, [program])), losses(PAGE))


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.parity_all)])
def test_the_original_prints_the_losses_of_the_page(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = interpreter_with("torch", "accelerate")
    # The virtual environment of this process is not that of the other interpreter.
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    command = [interpreter, str(PROGRAMS / "accelerate_before.py")]
    if processes > 1:
        launch = [interpreter, "-m", "accelerate.commands.launch", "--cpu", f"--num_processes={processes}"]
        command = [*launch, "--main_process_port=0", *command[1:]]
    assert same(output(tmp_path, command), losses(PAGE), OTHER_FRAMEWORK)
    assert Path(interpreter).exists() or interpreter == sys.executable
