"""docs/coming_from/tf_distribute.md and index.md: under tf.distribute and ours, the numbers of one device."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.docs.coming_from.programs import (
    LIMIT_SECONDS,
    PAGES,
    by_launcher,
    changed,
    interpreter_with,
    losses,
    on_one,
    output,
    same,
)
from tests.processes import python

PAGE = (PAGES / "tf_distribute.md").read_text()

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)

#: The settings of the table of numbers, and what the original raises; None where it trains.
SETTINGS = {
    "global_clipnorm=0.1": ({"momentum=0.9": "momentum=0.9, global_clipnorm=0.1"}, None),
    "batch_size=97": ({"batch_size=100": "batch_size=97"}, "InvalidArgumentError"),
    "gradient_accumulation_steps=2": (
        {"momentum=0.9": "momentum=0.9, gradient_accumulation_steps=2"},
        "called while defining a new graph or a tf.function",
    ),
    "steps_per_execution=5": ({'"mse"': '"mse", steps_per_execution=5'}, "You must feed a value for placeholder"),
    "jit_compile=True": ({'"mse"': '"mse", jit_compile=True'}, "InvalidArgumentError"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("one_device.py", marks=pytest.mark.parity_all),
        "tf_distribute_fit_before.py",
        "tf_distribute_fit_after.py",
        pytest.param("tf_distribute_loop_before.py", marks=pytest.mark.parity_all),
        "tf_distribute_loop_after.py",
    ],
)
def test_one_process_prints_the_losses_of_one_device(name: str, tmp_path: Path) -> None:
    assert same(output(tmp_path, on_one(name)))


def test_two_processes_print_the_losses_of_one_device(tmp_path: Path) -> None:
    assert same(output(tmp_path, by_launcher("tf_distribute_workers_after.py")))


def test_the_original_in_two_processes_raises_what_the_page_shows(tmp_path: Path) -> None:
    [error] = re.findall(r"```\n(ValueError: .*?)\n\.\.\.\n(.*?)\n```", PAGE, flags=re.DOTALL)
    printed = output(tmp_path, by_launcher("tf_distribute_workers_before.py"), fails=True)
    assert all(line in printed for line in error)


def _row(setting: str) -> list[str]:
    """Returns the cells of a row of the page's table of numbers."""
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{setting}`")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parity_all
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_table_of_numbers(setting: str, tmp_path: Path) -> None:
    changes, error = SETTINGS[setting]
    _, one_device, original, ours = _row(setting)
    trained = output(tmp_path, python(changed(tmp_path, "one_device.py", changes)))
    assert same(f"loss {one_device}", losses(trained))
    assert same(output(tmp_path, python(changed(tmp_path, "tf_distribute_fit_after.py", changes))), losses(trained))
    assert ours == "the same"
    before = output(tmp_path, python(changed(tmp_path, "tf_distribute_fit_before.py", changes)), fails=bool(error))
    if error is None:
        assert same(f"loss {original}", losses(before))
    else:
        assert error in before
        assert f"`{error}`" in original


@pytest.mark.parity_all
@pytest.mark.parametrize("name", ["tf_distribute_fit_before.py", "tf_distribute_workers_before.py"])
def test_keras_2_prints_the_same_losses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = interpreter_with("tf_keras", "tensorflow")
    program = changed(tmp_path, name, {"import keras\n": "import tf_keras as keras\n"})
    command = [interpreter, program]
    if "workers" in name:
        command = [interpreter, "-m", "strategies.launch", "--nproc-per-node", "2", program]
    assert same(output(tmp_path, command))


def test_the_parameter_server_is_refused_as_the_page_says() -> None:
    import strategies

    with pytest.raises(NotImplementedError) as raised:
        strategies.ParameterServerStrategy()
    [quoted] = re.findall(r"```\n\s*(NotImplementedError: .*?)\n\s*```", PAGE, flags=re.DOTALL)
    assert str(raised.value).startswith(" ".join(quoted.split()).removeprefix("NotImplementedError: ").rstrip(" ."))


@pytest.mark.parity_all
def test_keras_3_reads_what_keras_2_saved_as_h5(tmp_path: Path) -> None:
    interpreter = interpreter_with("tf_keras", "tensorflow")
    layers = "[keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]"
    model = f"model = keras.Sequential({layers})\n"
    shown = 'print("sum of outputs", abs(model.predict(np.ones((2, 8)), verbose=0)).sum())\n'
    weights, whole = str(tmp_path / "weights.h5"), str(tmp_path / "model.h5")
    save = f"model.save_weights({weights!r})\nmodel.save({whole!r})\n"
    load_weights = f"{model}model.load_weights({weights!r})\n"
    load_model = f"model = keras.models.load_model({whole!r}, compile=False)\n"
    first = "import numpy as np, tf_keras as keras\n" + model + shown + save
    imports = "import numpy as np, keras, strategies\nwith strategies.MirroredStrategy().scope():\n"
    second = imports + textwrap.indent(load_weights + shown + load_model + shown, "    ")
    printed = output(tmp_path, [interpreter, "-c", first]) + output(tmp_path, [interpreter, "-c", second])
    sums = re.findall(r"sum of outputs (\S+)", printed)
    assert len(sums) == 3
    assert len(set(sums)) == 1
