"""`python benchmarks/model_parallel/main.py`: bounds and tables as values, and tiny real runs. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

TINY = [
    "--schedule=eager_1f1b",
    "--rounds=1",
    "--steps=1",
    "--microbatches=2",
    "--dense_width=8",
    "--dense_batch_size=4",
    "--mlp_width=8",
    "--mlp_batch_size=2",
    "--block_width=128",
    "--block_batch_size=2",
]

run = functools.partial(run_benchmark, "model_parallel")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_torch_trains_the_same_models() -> None:
    pytest.importorskip("torch")
    done = run(*TINY, "--contender=torch", "--contender=torch_split")
    assert done.returncode == 0, done.stderr
    sections = [section.partition(":")[0] for section in done.stdout.split("\n## ")[1:]]
    assert sections == ["dense over the axis 'pipe'", "mlp over the axis 'tensor'", "block over the axis 'tensor'"]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| torch.distributed, gloo, 2 processes |")]
    assert [row.split(" | ")[5] for row in rows] == ["2 of 6.4e-05 MB", "1 of 6.4e-05 MB", "4 of 0.0655 MB"]


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.parametrize("name", ["multi_worker", "horovod"])
def test_ours_trains_over_two_processes(name: str) -> None:
    done = run(*TINY, "--model=dense", "--model=mlp", "--contender=plain", f"--contender={name}")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ours") and "MB" in line]
    assert [row[5] for row in rows] == ["2 of 6.4e-05 MB", "1 of 6.4e-05 MB"]
    # Speedup, latency, core time per byte, bound.
    assert all(float(row[column]) > 0 for row in rows for column in (4, 6, 7, 8))


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_raw_tensorflow_trains_stages_only() -> None:
    done = run(*TINY, "--model=dense", "--model=mlp", "--contender=plain", "--contender=raw")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| TensorFlow's operations by hand, 2 processes |") == 1


def test_passes_of_raw_tensorflow() -> None:
    from model_parallel import raw_tensorflow

    def format_passes(rank: int, schedule: str) -> str:
        return " ".join(f"{kind[0]}{index}" for kind, index in raw_tensorflow.passes(rank, 4, schedule))

    assert format_passes(0, "1f1b") == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert format_passes(0, "eager_1f1b") == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert format_passes(1, "1f1b") == format_passes(1, "eager_1f1b") == "f0 b0 f1 b1 f2 b2 f3 b3"


@pytest.mark.parametrize(
    "flag", ["--model=cnn", "--contender=mpi", "--rounds=0", "--dense_batch_size=9", "--block_width=192", "dense"]
)
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_messages_without_cost_leave_the_ideal_pipeline() -> None:
    from model_parallel import bounds

    # A slot for each micro-batch, and one more for fill and drain.
    assert bounds.one_f_one_b_ms(8, 1.0, 2.0, 0.0) == pytest.approx(3.0 * (8 + 1))


def test_latency_is_felt_once_by_every_microbatch() -> None:
    from model_parallel import bounds

    # Two micro-batches are in flight, each with a message in both directions: twice the latency for every other one.
    assert bounds.one_f_one_b_ms(8, 1.0, 2.0, 0.25) == pytest.approx(3.0 * (8 + 1) + 8 * 0.25)
    assert bounds.one_f_one_b_ms(8, 1.0, 2.0, 100.0) == pytest.approx(3.0 * (8 + 1) + 8 * 100.0)
    assert bounds.one_f_one_b_ms(8, 1.0, 2.0, 0.25, num_first=2) == pytest.approx(3.0 * (8 + 1) + 2 * 0.25)


def test_what_bounds_a_step() -> None:
    from model_parallel.bounds import Traffic, least_ms, traffic
    from model_parallel.cases import Case

    dense, mlp, block = Case("dense", 1024, 512, 8), Case("mlp", 4096, 64), Case("block", 1024, 8)
    assert traffic(dense) == Traffic(64 * 1024 * 4, 8)
    assert traffic(mlp) == Traffic(64 * 4096 * 4, 1)
    assert traffic(block) == Traffic(8 * 64 * 1024 * 4, 4)
    assert least_ms(dense, 160.0, 0.0, 0.0) == pytest.approx(160 * 0.5625)
    # A stage sends and receives a message per micro-batch, and its peer waits for one of each.
    assert least_ms(dense, 160.0, 0.0, 1.0) == pytest.approx(160 * 0.5625 + 2 * 9)
    assert least_ms(block, 160.0, 0.5, 1.0) == pytest.approx(80 + 4 * 1.5)


def test_a_speedup_is_formed_round_by_round() -> None:
    from harness.turns import row_of
    from model_parallel import tables
    from model_parallel.cases import Case, Turn
    from model_parallel.contenders import KINDS

    case = Case("mlp", 8, 2)
    step = Turn(case, "step")
    measured = {row_of(KINDS["plain"].row, step): [4.0, 6.0], row_of(KINDS["horovod"].row, step): [2.0, 4.0]}
    found = tables.speedups([case], measured, ["plain", "horovod"])
    assert found == {tables.speedup("horovod", case): [2.0, 1.5]}


def test_compares_only_who_is_there() -> None:
    from model_parallel import tables
    from model_parallel.cases import Case

    def compared(case: Case, *names: str) -> list[tuple[str, float | None, bool]]:
        return [(each.name, each.target, each.at_most) for each in tables.comparisons([case], names)]

    dense, mlp = Case("dense", 8, 4, 2), Case("mlp", 8, 2)
    assert compared(dense, "plain", "multi_worker") == []
    assert compared(dense, "plain", "multi_worker", "horovod", "torch_split") == [
        (f"time of multi_worker / torch_split: {dense.label}", 0.85, True),
        (f"time of horovod / torch_split: {dense.label}", 1.1, True),
    ]
    assert compared(mlp, "plain", "multi_worker", "torch", "torch_split") == [
        (f"time of multi_worker / torch_split: {mlp.label}", None, True),
        (f"speedup of multi_worker / of torch_split: {mlp.label}", 1.0, False),
    ]


def test_one_core_and_one_thread_for_each_device() -> None:
    from harness.clusters import independent
    from model_parallel import contenders
    from model_parallel.cases import Case, Workload

    workload = Workload((Case("mlp", 8, 2),), 1, 1)
    plain, alone, torch, ours = contenders.contenders(
        ["plain", "one_process", "torch_split", "multi_worker"], workload, independent
    )
    assert [len(own) for own in plain.cores or ()] == [1]
    assert [len(own) for own in torch.cores or ()] == [len(own) for own in ours.cores or ()] == [1, 1]
    assert len(alone.environments) == 1
    assert all(e["TF_NUM_INTRAOP_THREADS"] == "1" for c in (plain, alone, torch, ours) for e in c.environments)
