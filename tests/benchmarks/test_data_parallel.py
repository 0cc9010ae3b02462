"""`python benchmarks/data_parallel/main.py`: comparisons as values, and one tiny real run. Nothing is timed."""

import functools
import os
import time
from pathlib import Path

import pytest
from harness import clusters
from harness.workers import Contender, Report, Workers

from tests.benchmarks import run_benchmark

KERAS = ("independent", "multi_worker", "horovod")


run = functools.partial(run_benchmark, "data_parallel")


@pytest.mark.timeout(600)
@pytest.mark.parity_all
def test_prints_ratios() -> None:
    pytest.importorskip("horovod")
    chosen = [f"--contender={name}" for name in KERAS]
    done = run("--model=small_cnn", "--cnn_rounds=1", "--cnn_steps=2", "--cnn_batch_size=4", *chosen)
    assert done.returncode == 0, done.stderr
    title = "## small_cnn: 2 processes, batch 4 each, 2 steps, 1 rounds, tf.data's autotune on"
    assert title in done.stdout
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0]: row[1:] for row in rows if len(row) == 5}
    assert list(ratios)[2:] == [
        "horovod / independent",
        "multi_worker / independent",
    ]
    assert ratios["horovod / independent"][2] == ">= 0.85"
    assert ratios["multi_worker / independent"][2] == ">= 0.75"
    assert all(float(row[0]) > 0 for row in list(ratios.values())[2:])
    assert len([row for row in rows if len(row) == 3]) == 2 + len(KERAS)


@pytest.mark.parametrize("flag", ["--model=lenet", "--contender=mpi", "--cnn_rounds=0", "--processes=1", "small_cnn"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_compares_what_is_there_and_efficiencies_round_by_round() -> None:
    from data_parallel import contenders

    kinds = contenders.KINDS
    assert contenders.comparisons("resnet50", ["horovod", "torch_ddp"]) == []
    found = {comparison.name: comparison for comparison in contenders.comparisons("resnet50", list(kinds))}
    assert found["horovod / independent"].target == 0.93
    assert found["multi_worker / stock"].target == 1.5
    efficiency = found["efficiency of horovod / of torch_ddp"]
    assert efficiency.target == 1.0
    found_of = contenders.efficiencies(
        {
            kinds["independent"].row: [10.0, 20.0],
            kinds["horovod"].row: [9.0, 16.0],
            kinds["torch_independent"].row: [8.0, 8.0],
            kinds["torch_ddp"].row: [4.0, 6.0],
        }
    )
    assert found_of[efficiency.contender] == [0.9, 0.8]
    assert found_of[efficiency.baseline] == [0.5, 0.75]


def test_flags_name_every_contender() -> None:
    from data_parallel import contenders

    done = run("--helpshort")
    assert f"<{'|'.join(contenders.KINDS)}>" in "".join(line.strip() for line in done.stdout.splitlines())


def test_contenders_have_their_cores_and_their_cluster() -> None:
    from data_parallel import contenders
    from mirrored.workload import Workload

    slots = ({"HOROVOD_RANK": "0"}, {"HOROVOD_RANK": "1"})
    names = list(contenders.KINDS)
    made = contenders.contenders(names, Workload("small_cnn", 4, 2, 1, 1), 2, True, lambda count: slots[:count])
    by_name = dict(zip(names, made, strict=True))
    assert by_name["horovod"].environments == slots
    assert [name for name in names if by_name[name].freezes] == ["horovod", "raw_horovod", "horovod_before"]
    for contender in made:
        assert contender.cores is not None
        assert [len(cores) for cores in contender.cores] == [1, 1]
        assert {core for cores in contender.cores for core in cores} <= os.sched_getaffinity(0)
    joined = [environment["TF_CONFIG"] for environment in by_name["multi_worker"].environments]
    assert len(set(joined)) == 2
    assert not any("TF_CONFIG" in environment for environment in by_name["independent"].environments)


def report_core(report: Report) -> None:
    while True:
        [core] = os.sched_getaffinity(0)
        report(core)


def test_processes_are_pinned_and_stand_still_between_their_turns() -> None:
    def state(pid: int | None) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    cores = clusters.one_core_each(2)
    workers = Workers(Contender("pinned", report_core, ({}, {}), cores=cores, freezes=True), timeout_seconds=100)
    try:
        assert workers.measure() == tuple(float(core) for [core] in cores)
        # The system stops a process when it schedules it next.
        while {state(process.pid) for process in workers._processes} != {"T"}:
            time.sleep(0.05)
        assert workers.measure() == tuple(float(core) for [core] in cores)
    finally:
        workers.stop()


def test_free_ports_differ() -> None:
    assert len(set(clusters.free_ports(20))) == 20


def test_torch_models_are_those_of_keras() -> None:
    torch = pytest.importorskip("torch")
    from data_parallel import torch_models
    from mirrored import models

    for name, subject in models.MODELS.items():
        theirs = torch_models.MODELS[name]
        model = theirs.make_model()
        height, width, channels = subject.image_shape
        assert theirs.image_shape == (channels, height, width)
        assert model(torch.zeros(2, channels, height, width)).shape == (2, models.NUM_CLASSES)
        num_weights = sum(parameter.numel() for parameter in model.parameters())
        trainable = subject.make_model().trainable_variables
        assert num_weights == sum(variable.value.shape.num_elements() for variable in trainable)
