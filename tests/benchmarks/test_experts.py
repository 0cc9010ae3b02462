"""`python benchmarks/experts/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

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
