"""`python benchmarks/pipeline/main.py`: cases and tables as values, and tiny real runs. Nothing is timed."""

import dataclasses
import functools
import sys

import pytest

from tests.benchmarks import run_benchmark

TINY = ["--rounds=1", "--steps=1", "--stages=2", "--microbatches=2", "--sleep_ms=1", "--width=8", "--batch_size=4"]


run = functools.partial(run_benchmark, "pipeline")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_all_parts() -> None:
    flags = ["--megabytes=1", "--blocks=2", "--contender=1f1b", "--contender=one_stage"]
    done = run(*TINY, *flags)
    assert done.returncode == 0, done.stderr
    sections = done.stdout.split("\n## ")[1:]
    assert [section.partition(":")[0] for section in sections] == ["sleep", "dense", "one_stage", "memory", "trace"]
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0]: row[1:] for row in rows if len(row) == 5 and "/" in row[0]}
    assert list(ratios) == ["1f1b / ideal: p=2, m=2, batch 2", "1f1b / limit: p=2, m=2, batch 4"]
    values = {row[0]: row[1] for row in rows if len(row) == 3 and row[0].startswith("PipelineModel")}
    assert list(values) == [
        "PipelineModel, 1f1b: p=2, m=2, batch 2",
        "PipelineModel, 1f1b: p=2, m=2, batch 4",
        "PipelineModel of one stage: p=1, m=1, batch 4",
        "PipelineModel, 1f1b: p=2, m=2, batch 8",
    ]


@pytest.mark.timeout(300)
def test_torch_trains_the_same_stages() -> None:
    pytest.importorskip("torch")
    done = run(
        *TINY,
        "--part=dense",
        "--contender=gpipe",
        "--contender=torch_gpipe",
        "--contender=zb_v",
        "--contender=torch_zb_v",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| gpipe / torch_gpipe: p=2, m=2, batch 4 |") == 1
    assert done.stdout.count("| zb_v / torch_zb_v: p=2, m=2, batch 4 |") == 1


@pytest.mark.timeout(300)
def test_stages_in_processes() -> None:
    done = run(*TINY, "--part=dense", "--contender=1f1b_processes", "--contender=zb_h1_processes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| zb_h1_processes / 1f1b_processes: p=2, m=2, batch 4 |") == 1


@pytest.mark.parametrize(
    "flag", ["--part=speed", "--rounds=0", "--stages=1", "--stages=9", "--batch_size=9", "--blocks=3", "sleep"]
)
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_cases_are_measured_in_both_orders() -> None:
    from harness import turns
    from pipeline import parts

    load = parts.workload("sleep", 10, [512], num_rounds=2)
    names = [case.label for case in load.cases]
    assert len(names) == len(set(names)) == 9
    in_turn = turns.turns(load.cases)
    values = [float(load.cases.index(next(in_turn))) for _ in range(2 * 9)]
    assert values[8:10] == [8.0, 8.0]
    found = turns.by_case({"ours": values}, load.cases)
    assert found == {f"ours: {name}": [index, index] for index, name in enumerate(names)}


def test_an_ideal_pipeline_has_the_ideal_speedup() -> None:
    from pipeline import clock, parts

    case = parts.workload("sleep", 10, [], [4], [16]).cases[0]
    # A slot of 10 ms forward and 20 ms backward for each micro-batch, and p - 1 more for fill and drain.
    assert clock.value_of(0.03 * (16 + 4 - 1), "sleep", case) == pytest.approx(case.ideal_speedup)
    # A pass of half a device's layers takes 5 ms, and each device has 6 for each micro-batch.
    assert clock.value_of(0.005 * (6 * 16 + 4 - 1), "sleep", case) == pytest.approx(case.ideal_speedup_of_zb_v)
    assert case.with_stages_per_device(2, shorter=True) == dataclasses.replace(case, num_stages=8, size=5)


def test_compares_only_who_is_there() -> None:
    from pipeline import parts

    [case] = parts.workload("dense", 8, [16]).cases
    compared = parts.comparisons("dense", ["gpipe", "1f1b", "torch_1f1b"], case)
    assert [each.name for each in compared] == ["1f1b / torch_1f1b: p=2, m=8, batch 16"]
    assert (compared[0].target, compared[0].at_most) == (0.85, True)


def test_a_thread_for_each_stage() -> None:
    from pipeline import contenders, parts

    load = parts.workload("dense", 8, [16])
    plain, ours, torch = contenders.contenders(["plain", "1f1b", "torch_1f1b"], load)
    assert [len(own) for own in plain.cores or ()] == [1]
    assert [len(own) for own in torch.cores or ()] == [1, 1]
    assert [each["TF_NUM_INTEROP_THREADS"] for each in ours.environments] == ["2"]
    assert all(e["TF_NUM_INTRAOP_THREADS"] == "1" for c in (plain, ours, torch) for e in c.environments)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_steps_take_the_memory_of_what_they_hold() -> None:
    from pipeline import memory

    def step() -> None:
        held.append(bytearray(50_000_000))
        held.clear()

    held: list[bytearray] = []
    assert 45e6 < memory.increase(step, 2) < 80e6
