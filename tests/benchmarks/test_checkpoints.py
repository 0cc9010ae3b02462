"""`python benchmarks/checkpoints/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools
import importlib.util

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "checkpoints")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_ratios_of_all_contenders() -> None:
    done = run("--rounds=1", "--megabytes=13")
    assert done.returncode == 0, done.stderr
    assert "## seconds to save 13 MB from two processes, 1 rounds" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    has_torch = importlib.util.find_spec("torch") is not None
    assert len([row for row in rows if len(row) == 5]) == 2 + (9 if has_torch else 4)
    assert len([row for row in rows if len(row) == 3]) == 2 + (8 if has_torch else 5)
    assert ("Not measured: torch's distributed checkpoints" in done.stdout) != has_torch


@pytest.mark.parametrize(
    "flag", ["--rounds=0", "--megabytes=0", "--torch_python=/absent/python", "--torch_python=false", "checkpoints"]
)
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
