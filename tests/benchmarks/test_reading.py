"""`python benchmarks/reading/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "reading")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_ratios_of_all_contenders() -> None:
    sizes = ["--images=20", "--min_side=40", "--max_side=50", "--image_size=32", "--batch_size=8"]
    done = run("--clock=cpu", "--rounds=2", "--batches=2", *sizes)
    assert done.returncode == 0, done.stderr
    assert "## images/s and core: 20 images of 40 to 50 pixels, " in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 5}
    assert list(ratios) == [
        "comparison",
        "---",
        "class folders / Keras",
        "TFRecords / Keras",
        "training, class folders / Keras without augmentation",
        "training, TFRecords / Keras without augmentation",
        "Keras / Keras, the noise",
    ]
    assert all(float(row[0]) > 0 for name, row in ratios.items() if name not in ("comparison", "---"))
    assert len([row for row in rows if len(row) == 3]) == 2 + 6


@pytest.mark.parametrize("flag", ["--clock=sun", "--rounds=0", "--min_side=600", "reading"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
