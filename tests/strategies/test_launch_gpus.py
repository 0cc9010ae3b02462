"""--pick-gpus: the GPUs that a launcher takes, with a program in place of nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strategies.launching.gpu_picking import Gpu, pick_gpus
from tests.strategies.launching import launched, written

# Of eight GPUs, 1 computes, 3 is lost, 4 has a small process, 6 needs a reset.
LISTED = """0, GPU-aaa0, 3, 81559
1, GPU-aaa1, 70211, 81559
2, GPU-aaa2, 1, 81559
3, GPU-aaa3, [Unknown Error], [Unknown Error]
4, GPU-aaa4, 1600, 81559
5, GPU-aaa5, 512, 81559
6, GPU-aaa6, [GPU requires reset], 81559
7, GPU-aaa7, 0, 81559
"""
# A test run may hide all GPUs.
ALL = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return machine(tmp_path, LISTED)


def machine(folder: Path, listed: str, code: int = 0, error: str = "") -> dict[str, str]:
    """Returns the environment of a machine whose nvidia-smi prints a list."""
    (folder / "listed").write_text(listed)
    (folder / "error").write_text(error)
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --query-gpu=index,uuid,memory.used,memory.total ] || exit 9\n'
        f'cat "{folder}/listed"; cat "{folder}/error" >&2; exit {code}\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("count", "picked"),
    [
        (1, "GPU-aaa7"),
        (2, "GPU-aaa2,GPU-aaa7"),
        (3, "GPU-aaa0,GPU-aaa2,GPU-aaa7"),
        (4, "GPU-aaa0,GPU-aaa2,GPU-aaa5,GPU-aaa7"),
    ],
)
def test_those_with_the_least_memory_in_use(environment: dict[str, str], count: int, picked: str) -> None:
    assert pick_gpus(count, environment) == picked


def test_too_few_are_free(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="of 8 GPUs only 4 are free") as error:
        pick_gpus(5, environment)
    for text in ("GPU 1: 68.6 of 79.6 GiB in use", "GPU 3: does not answer", "GPU 6: does not answer", "Received: 5"):
        assert text in str(error.value)


@pytest.mark.parametrize("visible", ["5,0,1", "GPU-aaa5, GPU-aaa0,GPU-aaa1"])
def test_only_among_visible_ones(environment: dict[str, str], visible: str) -> None:
    assert pick_gpus(2, environment | {"CUDA_VISIBLE_DEVICES": visible}) == "GPU-aaa0,GPU-aaa5"
    with pytest.raises(ValueError, match=r"of 3 GPUs in CUDA_VISIBLE_DEVICES=.* only 2 are free"):
        pick_gpus(3, environment | {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(("visible", "said"), [("", "of 0 GPUs"), ("-1", "of 0 GPUs"), ("MIG-abc", "parts of GPUs")])
def test_none_to_choose_from(environment: dict[str, str], visible: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pick_gpus(1, environment | {"CUDA_VISIBLE_DEVICES": visible})


def test_a_lost_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU 0000:3F:00.0: Unknown Error"
    assert pick_gpus(1, machine(tmp_path, f"0, GPU-a, 0, 16384\n{lost}\n", 15, lost)) == "GPU-a"


def test_a_driver_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lists no GPU: NVIDIA-SMI has failed"):
        pick_gpus(1, machine(tmp_path, "", 9, "NVIDIA-SMI has failed\n"))


def test_no_driver(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nvidia-smi cannot be asked"):
        pick_gpus(1, {"PATH": str(tmp_path)})


def test_a_small_gpu_is_busy_with_less() -> None:
    assert Gpu(0, "", 500 * 2**20, 4 * 2**30).problem == "0.5 of 4.0 GiB in use"
    assert Gpu(0, "", 300 * 2**20, 4 * 2**30).problem == ""


def test_the_ranks_see_those_that_were_picked(environment: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    ended = launched("--nproc-per-node", "gpu", "--pick-gpus", "2", path, environment=environment | ALL)
    assert sorted(ended.stdout.splitlines()) == [b"[0] GPU-aaa2,GPU-aaa7", b"[1] GPU-aaa2,GPU-aaa7"]
    assert ended.returncode == 0


def test_a_launcher_that_finds_too_few_starts_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    ended = launched("--pick-gpus", "5", written(tmp_path, "print(1)"), environment=environment | ALL)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"argument --pick-gpus: of 8 GPUs in CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 only 4 are free" in ended.stderr
