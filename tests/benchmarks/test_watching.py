"""`python benchmarks/watching/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "watching")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_both_ratios() -> None:
    done = run("--rounds=1", "--steps=2")
    assert done.returncode == 0, done.stderr
    assert "## milliseconds of a step of two processes, 2 steps in each of 1 rounds" in done.stdout
    for row in ("| watched / not watched | ", "| not watched, once more / not watched | ", "| watched | "):
        assert row in done.stdout


@pytest.mark.parametrize("flag", ["--rounds=0", "--steps=0", "watching"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
