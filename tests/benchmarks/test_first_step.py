"""`python benchmarks/first_step/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "first_step")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
@pytest.mark.parametrize(
    ("flags", "ratios", "num_contenders"),
    [
        (
            ["--devices=2", "--devices=8"],
            [
                "ours, 2 devices / 1 device",
                "ours, 8 devices / 1 device",
                "the graph of 1 device alone / ours on 1 device",
                "the graph of 8 devices alone / ours on 1 device",
                "ours / TensorFlow's, 2 devices",
                "ours / TensorFlow's, 8 devices",
            ],
            10,
        ),
        (["--devices=2", "--memory"], ["ours / TensorFlow's, 2 devices"], 6),
    ],
    ids=["seconds", "memory"],
)
def test_prints_ratios_of_all_contenders(flags: list[str], ratios: list[str], num_contenders: int) -> None:
    done = run("--model=gpt", "--blocks=1", "--rounds=1", *flags)
    assert done.returncode == 0, done.stderr
    rows = [line.removeprefix("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows if len(row) == 5][2:] == [
        "ours on 1 device / plain Keras",
        *ratios,
        "ours, pipe=4 / 1 device",
        "ours, tensor=4 / 1 device",
    ]
    assert len([row for row in rows if len(row) == 3]) == 2 + num_contenders


@pytest.mark.parametrize("flag", ["--model=lenet", "--devices=1", "--rounds=0", "gpt"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
