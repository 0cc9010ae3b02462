"""`python benchmarks/planning/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "planning")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_errors_of_all_settings() -> None:
    done = run(
        "--model=mixture", "--setting=one device", "--setting=data=2", "--setting=expert=2", "--rounds=2", "--steps=1"
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| mixture")]
    assert len(rows) == 9
    # Planned memory is that which is held; of divided experts there is no plan.
    errors = {row[1]: row[6].strip(" |") for row in rows}
    assert errors.pop("expert=2") == "-"
    assert all(abs(float(error.rstrip("%"))) <= 1 for error in errors.values() if error != "-")
    assert "The mesh called best is the best measured, or within 5 % of it, in" in done.stdout


@pytest.mark.parametrize("flag", ["--rounds=0", "--model=resnet", "planning"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
