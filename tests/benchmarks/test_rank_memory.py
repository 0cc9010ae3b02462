"""`python benchmarks/rank_memory/main.py`: tables as values, and tiny real runs. No memory is asserted here."""

import functools
import sys
from typing import Any

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "rank_memory")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.parametrize("mesh", ["pipe=2", "tensor=2"])
def test_measures_every_phase(mesh: str) -> None:
    done = run(f"--mesh={mesh}", "--layers=2", "--width=64")
    assert done.returncode == 0, done.stderr
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["build", "first pass", "save_weights", "load_weights", "train", "save"]
    assert rows[0][2:4] == [f"rank {rank}: parts (tensors beyond)" for rank in range(2)]


@pytest.mark.parametrize(
    "flag", ["--mesh=data=2", "--layers=2", "--width=4095", "--preset=pipe=2", "--strategy=mirrored", "pipe"]
)
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_what_a_rank_holds() -> None:
    from rank_memory.cases import Case, parts_held

    case = Case({"pipe": 2, "tensor": 2}, 8, 16)
    assert (case.num_ranks, case.tensor_bytes, case.part_bytes) == (4, 1024, 2048)
    assert (case.label, case.cuts) == ("pipe=2,tensor=2", ["dense_4"])
    assert Case({"tensor": 4}, 8, 16).cuts == []
    # Gradients have the size of weights.
    assert [parts_held(phase) for phase in ("build", "load_weights", "train")] == [0, 1, 2]


def test_what_grows_with_a_tensor_is_held_and_the_rest_is_the_base() -> None:
    from rank_memory import tables
    from rank_memory.cases import PHASES, Case

    case = Case({"pipe": 2}, 4, 16)
    small, large = case.smaller.tensor_bytes, case.tensor_bytes
    assert (small, large) == (256, 1024)
    # A rank's part is two tensors.
    measured = dict.fromkeys(PHASES, ((50.0 + 2 * small, 70.0 + 3.5 * small), (50.0 + 2 * large, 70.0 + 3.5 * large)))
    assert tables.held(case, "save", measured) == [(2.0, 50.0), (3.5, 70.0)]
    rows = {row.split(" | ")[0]: row.split(" | ")[1:] for row in tables.table(case, measured).splitlines()[2:]}
    assert rows["| save"] == ["1", "1.00 (+0.00)", "1.75 (+1.50)", "0", "+1.50", "no |"]
    assert rows["| train"] == ["2", "1.00 (-2.00)", "1.75 (-0.50)", "0", "-0.50", "yes |"]


def test_what_a_rank_holds_of_a_preset() -> None:
    from rank_memory import preset_cases

    case = preset_cases.PresetCase({"tensor": 2}, 2, 64)
    small, large = case.smaller.tensor_bytes, case.tensor_bytes
    assert (case.num_ranks, case.label, large) == (2, "tensor=2", 4 * 50257 * 64)
    assert case.preset_bytes == 4 * (2 * (12 * 64**2 + 13 * 64) + (50257 + 128 + 2) * 64)
    # The base is 7 and 9 bytes; the ranks hold half a tensor, and one and a half, beyond parts of 5 and of 10 bytes.
    peaks: list[dict[str, Any]] = [
        {"part": [part, part], "load": [part + 7 + tensor / 2, part + 9 + 1.5 * tensor], "train": [part + 1, part + 2]}
        for part, tensor in ((5, small), (10, large))
    ]
    assert preset_cases.held(case, "load", *peaks) == [(0.5, 7.0), (1.5, 9.0)]
    rows = {row.split(" | ")[0]: row.split(" | ")[-2:] for row in preset_cases.table(case, *peaks).splitlines()[2:]}
    assert rows["| load"] == ["+1.50", "no |"]
    assert rows["| train"] == ["+0.00", "yes |"]


@pytest.mark.timeout(600)
@pytest.mark.parity_all
@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_measures_a_preset() -> None:
    pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")
    done = run("--preset=tensor=2", "--layers=1", "--width=64")
    assert done.returncode == 0, done.stderr
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["load", "train"]
