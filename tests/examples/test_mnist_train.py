"""The example's training on fake digits: one step, the numbers of one device on two, outputs and refusals."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from mnist import data, model, train

QUIET = train.Options(devices=1, epochs=1, batch_size=8, dropout=0.0, verbose=0)


@pytest.fixture(scope="module")
def digits() -> data.Digits:
    """Digits of noise with a bright bar whose place is the label, in counts that no batch size divides."""

    def split(count: int) -> data.Split:
        images = np.random.default_rng(count).integers(0, 64, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 4] = 255
        return data.Split(images, labels)

    return data.Digits(split(51), split(21), source="fake")


def curves(result: train.Result) -> dict[str, list[float]]:
    """The history, without what differs from run to run: how fast it was."""
    speeds = ("images_per_second", "waiting_input", "waiting_communication")
    assert set(speeds) <= set(result.history)
    return {name: values for name, values in result.history.items() if name not in speeds}


def test_model_takes_raw_pixels() -> None:
    logits = model.build_model()(np.zeros((3, 28, 28), np.uint8))
    assert logits.shape == (3, 10)
    assert logits.dtype == "float32"


def test_one_step_changes_every_weight(digits: data.Digits) -> None:
    network = model.build_model(dropout=0.0)
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = network.get_weights()
    network.fit(train.make_dataset(digits.train, 51), verbose=0, shuffle=False)
    assert all((old != new).any() for old, new in zip(before, network.get_weights(), strict=True))


def test_dataset_has_every_image_once_in_a_seeded_order(digits: data.Digits) -> None:
    def labels(dataset: Any) -> list[list[int]]:
        return [batch.tolist() for _, batch in dataset.as_numpy_iterator()]

    plain = labels(train.make_dataset(digits.test, 8))
    assert plain == [list(digits.test.labels[start : start + 8]) for start in (0, 8, 16)]
    dataset = train.make_dataset(digits.test, 8, shuffle_seed=1)
    first, second = labels(dataset), labels(dataset)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == sorted(chain(*plain))
    again = train.make_dataset(digits.test, 8, shuffle_seed=1)
    assert [labels(again), labels(again)] == [first, second]


def test_run_learns_and_is_reproducible(digits: data.Digits) -> None:
    options = replace(QUIET, epochs=6, dropout=0.2, learning_rate=5e-3)
    result = train.run(options, digits)
    assert result.test_accuracy > 0.5
    assert result.test_accuracy == pytest.approx(result.history["val_accuracy"][-1], abs=1e-6)
    assert result.test_loss == pytest.approx(result.history["val_loss"][-1], abs=1e-6)
    assert result.images_per_second > 0
    assert curves(train.run(options, digits)) == curves(result)
    assert curves(train.run(replace(options, seed=1), digits)) != curves(result)


@pytest.mark.parametrize("num_devices", [2, 3])
def test_several_devices_give_the_curve_of_one(digits: data.Digits, num_devices: int) -> None:
    options = replace(QUIET, epochs=2, batch_size=10)
    one = curves(train.run(options, digits))
    several = curves(train.run(replace(options, devices=num_devices), digits))
    assert list(one) == list(several) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    for name, values in one.items():
        np.testing.assert_allclose(several[name], values, rtol=0, atol=1e-6, err_msg=name)


@pytest.fixture
def float64() -> Iterator[None]:
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("float64")
def test_in_float64_the_curves_stay_together(digits: data.Digits) -> None:
    # Training enlarges rounding: only with more digits can many steps tell it from a mistake.
    options = replace(QUIET, epochs=8, batch_size=10)
    one = curves(train.run(options, digits))
    two = curves(train.run(replace(options, devices=2), digits))
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0, atol=1e-12, err_msg=name)


# TensorFlow's variables on several devices are not up to date with numpy 2, and TensorBoard logs one of them.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_saved_model_and_tensorboard_logs(digits: data.Digits, tmp_path: Path) -> None:
    path, logs = tmp_path / "models" / "digits.keras", tmp_path / "logs"
    options = replace(QUIET, devices=2, save=str(path), tensorboard_dir=str(logs))
    result = train.run(options, digits)
    loaded = keras.models.load_model(path)
    loss, accuracy = loaded.evaluate(digits.test.images, digits.test.labels, verbose=0)
    assert loss == pytest.approx(result.test_loss, abs=1e-5)
    assert accuracy == pytest.approx(result.test_accuracy, abs=1e-6)
    for part in ("train", "validation"):
        (events,) = (logs / part).glob("events.out.tfevents.*")
        assert b"epoch_accuracy" in events.read_bytes()


def test_result_is_one_line_of_keys_and_values() -> None:
    line = str(train.Result(0.98125, 0.0612, 1234.5, 10, 2, True, 12.34, {}))
    word, *pairs = line.split(" ")
    assert word == "result"
    assert {key: json.loads(value) for key, value in (pair.split("=") for pair in pairs)} == {
        "test_accuracy": 0.9812,
        "test_loss": 0.0612,
        "images_per_second": 1234,
        "epochs": 10,
        "devices": 2,
        "seconds": 12.3,
    }


@pytest.mark.parametrize("name", ["digits.h5", "digits", "folder.keras"])
def test_save_path_is_checked_before_training(digits: data.Digits, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(OptionError, match="--save: expected the path of a file"):
        train.run(replace(QUIET, save=str(tmp_path / name)), digits)


@pytest.mark.parametrize("option", ["save", "tensorboard_dir"])
def test_folder_that_cannot_be_made(digits: data.Digits, tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    change: dict[str, Any] = {option: str(tmp_path / "file" / "below" / "x.keras")}
    with pytest.raises(OptionError, match=f"--{option}: cannot make the folder .* Name one"):
        train.run(replace(QUIET, **change), digits)


def test_tensorboard_not_installed(digits: data.Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install tensorboard"):
        train.run(replace(QUIET, tensorboard_dir=str(tmp_path)), digits)
