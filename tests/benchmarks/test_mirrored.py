"""`python benchmarks/mirrored/main.py` at tiny sizes: it runs and prints its tables. Nothing is timed."""

import functools

import pytest

from tests.benchmarks import run_benchmark

run = functools.partial(run_benchmark, "mirrored")


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_ratios_of_all_contenders() -> None:
    done = run("--model=small_cnn", "--devices=2", "--cnn_rounds=2", "--cnn_steps=2", "--cnn_batch_size=8")
    assert done.returncode == 0, done.stderr
    assert "## small_cnn: global batch 8, 2 steps, 2 rounds" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 5}
    assert list(ratios) == [
        "comparison",
        "---",
        "ours / stock, 2 devices",
        "ours on 1 device / plain Keras",
        "ours / stock with ReductionToOneDevice, 2 devices",
        "ours on 2 devices / plain Keras",
        "plain Keras / plain Keras, the noise",
    ]
    assert ratios["ours / stock, 2 devices"][2] == ">= 1.00"
    assert ratios["ours on 1 device / plain Keras"][2] == ">= 0.97"
    assert all(float(row[0]) > 0 for name, row in ratios.items() if name not in ("comparison", "---"))
    values = [row for row in rows if len(row) == 3]
    assert len(values) == 2 + 6


@pytest.mark.timeout(300)
@pytest.mark.parity_all
def test_prints_the_price_of_each_part() -> None:
    done = run("--price", "--model=small_cnn", "--cnn_rounds=1", "--cnn_steps=2", "--cnn_batch_size=8")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    ratios = {row[0].removeprefix("| "): row[1:] for row in rows if len(row) == 5}
    assert len(ratios) == 2 + 2 + 5
    for part in ("row weights", "agreement of batches", "ledger", "all of these"):
        one, other = (
            f"MultiWorkerMirroredStrategy, 2 processes, without {part}",
            "MultiWorkerMirroredStrategy, 2 processes",
        )
        assert float(ratios[f"{one} / {other}"][0]) > 0


@pytest.mark.parametrize("flag", ["--model=lenet", "--devices=1", "--cnn_rounds=0", "--cnn_batch_size=7", "small_cnn"])
def test_refuses_what_it_does_not_know(flag: str) -> None:
    done = run(flag)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_models_fit_their_data() -> None:
    from mirrored import models

    for subject in models.MODELS.values():
        images, labels = models.dataset(subject, 6).element_spec
        model = models.compiled_model(subject)
        assert model.input_shape == tuple(images.shape)
        assert model.output_shape == (None, models.NUM_CLASSES)
        assert labels.shape == [None]
