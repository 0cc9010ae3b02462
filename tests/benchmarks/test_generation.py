"""`python benchmarks/generation/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

run = functools.partial(run_benchmark, "generation")

SMALL = ("--width=128", "--blocks=2", "--rows=2", "--prompt_tokens=2", "--new_tokens=2", "--rounds=1")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_ratios_of_all_contenders() -> None:
    done = run(*SMALL)
    assert done.returncode == 0, done.stderr
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows if len(row) == 5][2:] == [
        "tensor / plain",
        "tensor_horovod / plain",
        "pipe / plain",
        "pipe_two_groups / plain",
        "pipe_horovod / plain",
        "plain_again / plain",
        "pipe / its bound",
        "pipe_horovod / its bound",
    ]
    assert len([row for row in rows if len(row) == 3]) == 2 + 8


@pytest.mark.parametrize("flag", ["--width=100", "--blocks=3", "--rounds=0"])
def test_refuses_sizes_that_two_processes_cannot_share(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
