"""Training of the MNIST example on fake digits: one step, every mesh as one device, resume, outputs and refusals."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common import training
from common.options import OptionError
from mnist import data, model, train

QUIET = train.Options(devices=1, epochs=1, batch_size=8, dropout=0.0, verbose=0)
SPEEDS = ("images_per_second", "waiting_input", "waiting_communication")

Run = Callable[..., train.Result]


@pytest.fixture(scope="module")
def digits() -> data.Digits:
    """Returns noise with a bright bar whose position is the label, in numbers that no batch size divides."""

    def split(count: int) -> data.Split:
        images = np.random.default_rng(count).integers(0, 64, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 4] = 255
        return data.Split(images, labels)

    return data.Digits(split(51), split(21), source="fake")


@pytest.fixture
def run(digits: data.Digits, tmp_path: Path) -> Run:
    """Returns a function that trains with changed options, in a new folder unless `run_dir` names one."""
    folders = iter(range(100))

    def run(**changes: Any) -> train.Result:
        return train.run(replace(QUIET, **{"run_dir": str(tmp_path / f"run {next(folders)}"), **changes}), digits)

    return run


def curves(result: train.Result) -> dict[str, list[float]]:
    """Returns the history, without throughput, which differs from run to run."""
    history = result.outcome.history
    assert set(SPEEDS) <= set(history)
    return {name: values for name, values in history.items() if name not in SPEEDS}


def assert_equal(found: train.Result, expected: train.Result, atol: float = 1e-6) -> None:
    assert list(curves(found)) == list(curves(expected)) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    for name, values in curves(expected).items():
        np.testing.assert_allclose(curves(found)[name], values, rtol=0, atol=atol, err_msg=name)


def test_model_takes_raw_pixels() -> None:
    logits = model.build_model()(np.zeros((3, 28, 28), np.uint8))
    assert logits.shape == (3, 10)
    assert logits.dtype == "float32"


def test_one_step_changes_every_weight(digits: data.Digits) -> None:
    network = model.build_model(dropout=0.0)
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = network.get_weights()
    network.fit(train.evaluation_batches(digits.train, 51), verbose=0, shuffle=False)
    assert all((old != new).any() for old, new in zip(before, network.get_weights(), strict=True))


def test_batches_have_every_image_once_an_epoch_in_a_seeded_order(digits: data.Digits) -> None:
    def labels(dataset: Any) -> list[list[int]]:
        return [batch.tolist() for _, batch in dataset.as_numpy_iterator()]

    plain = labels(train.evaluation_batches(digits.test, 8))
    assert plain == [list(digits.test.labels[start : start + 8]) for start in (0, 8, 16)]
    two_epochs = labels(train.training_batches(digits.test, 8, seed=1, num_steps=6))
    first, second = two_epochs[:3], two_epochs[3:]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == sorted(chain(*plain))
    assert labels(train.training_batches(digits.test, 8, seed=1, num_steps=6)) == two_epochs
    assert labels(train.training_batches(digits.test, 8, seed=1, first_step=2, num_steps=3)) == two_epochs[2:5]
    assert labels(train.training_batches(digits.test, 8, seed=2, num_steps=6)) != two_epochs


def test_run_learns_and_is_reproducible(run: Run) -> None:
    options = {"epochs": 6, "dropout": 0.2, "learning_rate": 5e-3}
    result = run(**options)
    assert result.test_accuracy > 0.5
    assert result.outcome.units_per_second > 0
    assert curves(run(**options)) == curves(result)
    assert curves(run(**options, seed=1)) != curves(result)


@pytest.fixture(scope="module")
def one_device(digits: data.Digits, tmp_path_factory: pytest.TempPathFactory) -> train.Result:
    """Returns the result of two epochs of 6 steps, on one device."""
    return train.run(replace(QUIET, epochs=2, batch_size=10, run_dir=str(tmp_path_factory.mktemp("one"))), digits)


@pytest.mark.parametrize("num_devices", [2, 3])
def test_several_devices_give_the_curve_of_one(run: Run, one_device: train.Result, num_devices: int) -> None:
    assert_equal(run(epochs=2, batch_size=10, devices=num_devices), one_device)


def test_sharded_weights_give_the_curve_of_one(run: Run, one_device: train.Result) -> None:
    # Reductions into shards are not timed in one process: their share of the time is missing among the logs.
    history = run(epochs=2, batch_size=10, devices=2, shard="weights").outcome.history
    assert set(history) == {*curves(one_device), *SPEEDS} - {"waiting_communication"}
    for name, values in curves(one_device).items():
        np.testing.assert_allclose(history[name], values, rtol=0, atol=1e-6, err_msg=name)


def test_goes_on_within_an_epoch_on_another_mesh(
    run: Run, one_device: train.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(BaseException):
        """An error that nothing catches, because it is not an `Exception`."""

    def kill(callback: keras.callbacks.Callback, batch: int, logs: Any = None) -> None:
        # In the second epoch, one step after a checkpoint.
        if callback.model.optimizer.iterations == 9:
            raise Kill

    options = {"epochs": 2, "batch_size": 10, "checkpoint_steps": 2, "run_dir": str(tmp_path / "killed")}
    with monkeypatch.context() as patch:
        patch.setattr(training.CurveFile, "on_train_batch_end", kill, raising=False)
        with pytest.raises(Kill):
            run(**options)
    resumed = run(**options, mesh="data=2", devices=None)
    assert_equal(resumed, one_device)
    # The run is complete: the same command trains nothing more.
    finished = run(**options)
    assert finished.outcome.units_per_second == 0
    assert curves(finished) == curves(resumed)
    assert len((tmp_path / "killed" / "history.csv").read_text().splitlines()) == 3


@pytest.fixture
def float64() -> Iterator[None]:
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("float64")
def test_in_float64_every_mesh_has_the_curves_of_one_device(run: Run) -> None:
    # Training magnifies rounding: over many steps, only more digits distinguish it from a mistake.
    options = {"epochs": 8, "batch_size": 10, "dtype_policy": "float64"}
    one = run(**options)
    assert_equal(run(**options, devices=2), one, atol=1e-12)
    stages = {"mesh": "pipe=2,tensor=2", "devices": None, "partition": "uniform", "microbatches": 2}
    assert_equal(run(**options, **stages), one, atol=1e-12)


# TensorFlow's variables on several devices do not fully support numpy 2, and TensorBoard logs one of them.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_saved_model_and_tensorboard_logs(digits: data.Digits, run: Run, tmp_path: Path) -> None:
    path, folder = tmp_path / "models" / "digits.keras", tmp_path / "run"
    result = run(devices=2, save=str(path), run_dir=str(folder))
    loaded = keras.models.load_model(path)
    loss, accuracy = loaded.evaluate(digits.test.images, digits.test.labels, verbose=0)
    assert loss == pytest.approx(result.test_loss, abs=1e-5)
    assert accuracy == pytest.approx(result.test_accuracy, abs=1e-6)
    for part in ("train", "validation"):
        (events,) = (folder / "tensorboard" / part).glob("events.out.tfevents.*")
        assert b"epoch_accuracy" in events.read_bytes()


def outcome_of(folder: Path, **changes: Any) -> training.Outcome:
    """Returns an outcome of two epochs."""
    history = {"val_accuracy": [0.1, 0.98125], "val_loss": [2.0, 0.0612]}
    outcome = training.Outcome(
        history,
        1234.5,
        0.0123,
        None,
        num_devices=2,
        is_chief=True,
        seconds=12.34,
        unit="images",
        folder=folder,
    )
    return replace(outcome, **changes)


def test_result_is_one_line_of_keys_and_values(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    word, *pairs = str(train.Result(outcome)).split(" ")
    assert word == "result"
    assert {key: json.loads(value) for key, value in (pair.split("=") for pair in pairs)} == {
        "test_accuracy": 0.9812,
        "test_loss": 0.0612,
        "images_per_second": 1234,
        "waiting_input": 0.012,
        "waiting_communication": 0.0,
        "epochs": 2,
        "devices": 2,
        "seconds": 12.3,
    }


def test_the_report_is_for_people(tmp_path: Path) -> None:
    assert outcome_of(tmp_path).report().splitlines() == [
        "trained  2 epochs on 2 device(s); this start took 12.3 s",
        "speed    1,234 images/s, 1.2% of the time waiting for input",
        f"files    {tmp_path}: checkpoints, history.csv (the loss curve)",
    ]
    (tmp_path / "tensorboard").mkdir()
    changed = outcome_of(tmp_path, units_per_second=0.0, communication_share=0.5, saved=("a.keras", "b"))
    assert changed.report().splitlines()[1:] == [
        "speed    not measured: too few steps",
        f"files    {tmp_path}: checkpoints, history.csv (the loss curve), logs for tensorboard --logdir "
        f"'{tmp_path / 'tensorboard'}'",
        "saved    a.keras, b",
    ]


@pytest.mark.parametrize("name", ["digits.h5", "digits", "folder.keras"])
def test_save_path_is_checked_before_training(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(OptionError, match="--save: expected the path of a file"):
        run(save=str(tmp_path / name))


@pytest.mark.parametrize("option", ["save", "run_dir"])
def test_folder_that_cannot_be_made(run: Run, tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=f"--{option}: cannot make the folder .* Choose a"):
        run(**{option: str(tmp_path / "file" / "below" / "x.keras")})


def test_other_digits_are_refused(digits: data.Digits, run: Run, tmp_path: Path) -> None:
    run(run_dir=str(tmp_path / "run"))
    others = replace(digits, train=digits.test)
    with pytest.raises(OptionError, match="is a run with other data"):
        train.run(replace(QUIET, run_dir=str(tmp_path / "run")), others)
