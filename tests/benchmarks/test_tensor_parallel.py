"""`python benchmarks/tensor_parallel/main.py`: contenders as values, and one tiny real run. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

TINY = ["--rounds=1", "--steps=1", "--mlp_width=8", "--mlp_batch_size=2", "--block_width=128", "--block_batch_size=2"]


run = functools.partial(run_benchmark, "tensor_parallel")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_speedups() -> None:
    done = run(*TINY, "--contender=plain", "--contender=ours")
    assert done.returncode == 0, done.stderr
    assert "## mlp: width 8, batch 2, 2 shards, 1 steps, 1 rounds" in done.stdout
    assert "## block: width 128, batch 2, 2 shards, 1 steps, 1 rounds" in done.stdout
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ours")]
    assert [row[0] for row in rows] == ["ours / plain: speedup"] * 2
    assert all(float(row[1]) > 0 for row in rows)


@pytest.mark.timeout(300)
def test_torch_splits_the_same_models() -> None:
    pytest.importorskip("torch")
    done = run(*TINY, "--contender=torch", "--contender=torch_split")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| torch_split / torch: speedup |") == 2


@pytest.mark.parametrize("flag", ["--contender=mpi", "--rounds=0", "--shards=1", "--block_width=192", "block"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_compares_only_who_is_there() -> None:
    from tensor_parallel import contenders

    def titles(*names: str) -> list[str]:
        return [comparison.name for comparison in contenders.comparisons("mlp", names, 2)]

    assert titles("plain", "ours") == ["ours / plain: speedup"]
    assert titles("plain", "ours", "jax_split") == ["ours / plain: speedup"]
    assert titles("plain", "ours", "torch", "torch_split") == [
        "ours / plain: speedup",
        "torch_split / torch: speedup",
        "speedup of ours / of torch_split",
    ]


def test_a_speedup_is_formed_round_by_round() -> None:
    from tensor_parallel import contenders

    measured = {contenders.row_of("plain", 2): [1.0, 2.0], contenders.row_of("ours", 2): [1.5, 4.0]}
    assert contenders.speedups(measured, 2)[contenders.speedup("ours")] == [1.5, 2.0]


def test_one_core_and_one_thread_for_each_shard() -> None:
    from tensor_parallel import contenders
    from tensor_parallel.workload import Workload

    workload = Workload("mlp", 8, 2, 1, 1)
    plain, ours, torch = contenders.contenders(["plain", "ours", "torch_split"], workload, 2)
    assert [len(own) for own in plain.cores or ()] == [1]
    assert [len(own) for own in ours.cores or ()] == [2]
    assert [len(own) for own in torch.cores or ()] == [1, 1]
    assert all(e["TF_NUM_INTRAOP_THREADS"] == "1" for c in (plain, ours, torch) for e in c.environments)
