"""Programs of `benchmarks/experts` at tiny sizes: they run and print their tables. Nothing is timed."""

import functools

import numpy as np
import pytest

from tests.benchmarks import run_benchmark

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

run = functools.partial(run_benchmark, "experts")
TINY = ("--features=8", "--hidden_dim=8", "--rows=2", "--length=4", "--steps=1", "--rounds=2")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_ratios_of_all_contenders() -> None:
    done = run(*TINY)
    assert done.returncode == 0, done.stderr
    assert "## 8 experts, top 2, 8 x 8, 8 tokens, 1 steps, 2 rounds" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 5}
    assert ratios["MixtureOfExperts / KerasHub's dense bank"][2] == "<= 0.40"
    assert len([row for row in rows if len(row) == 3]) == 2 + 5


def test_contenders_train_the_same() -> None:
    from experts import training
    from experts.workload import Workload

    workload = Workload(4, 2, 8, 8, 2, 4, 1)
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    for programs in (("hub", "replaced"), ("ours", "plain")):
        one, other = (training.make_model(program, workload) for program in programs)
        other.set_weights(one.get_weights())
        np.testing.assert_allclose(one(x), other(x), atol=1e-6)


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.parametrize(
    ("kind", "rows", "num_ratios"),
    [("experts", "8 experts, top 2, 8 x 8, 16 tokens", 5), ("table", "64 x 4, 16 lookups, adagrad", 1)],
)
def test_over_two_processes(kind: str, rows: str, num_ratios: int) -> None:
    sizes = ("--features=8", "--hidden_dim=8", "--tokens=16", "--table_rows=64", "--columns=4", "--lookups=16")
    done = run_benchmark("experts", f"--kind={kind}", *sizes, "--steps=1", "--rounds=1", program="across")
    assert done.returncode == 0, done.stderr
    assert f"## {rows}, 1 steps, 1 rounds" in done.stdout
    rows_of = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    # Without the header and the line below it.
    assert len([row for row in rows_of if len(row) == 5]) == num_ratios + 2
    assert "sent by a process, MB/step by the formula, of two: 0.0" in done.stdout


def test_bytes_by_the_formulas() -> None:
    from experts.workload import Table, Workload

    # 16 tokens, 8 per process, with 16 choices: 8 go to the other process, four times, with 8 features each.
    assert Workload(8, 2, 8, 8, 8, 2, 1).sent(2) == 4 * 8 * 8 * 4
    # 16 lookups, 8 per process, 4 of them on the other: two indices, and two rows of 4 columns each.
    assert Table(64, 4, 16, "adagrad", 1).sent(2) == 4 * (2 * 4 + 2 * 4 * 4)
