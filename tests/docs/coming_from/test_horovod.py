"""docs/coming_from/horovod.md: Horovod's programs and ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.coming_from.programs import (
    LIMIT_SECONDS,
    PAGES,
    by_horovodrun,
    changed,
    interpreter_with,
    losses,
    output,
    same,
)
from tests.processes import ROOT, horovodrun

PAGE = (PAGES / "horovod.md").read_text()
#: The lines of the original that make and pass Horovod's callbacks.
CALLBACKS = {
    "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]\n": "",
    "callbacks=callbacks, ": "",
}

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)


@pytest.mark.parametrize(
    "name",
    [
        "horovod_fit_after.py",
        "horovod_loop_before.py",
        pytest.param("horovod_loop_after.py", marks=pytest.mark.parity_all),
    ],
)
def test_prints_the_losses_of_one_device(name: str, tmp_path: Path) -> None:
    assert same(output(tmp_path, by_horovodrun(name)))


def test_the_keras_binding_raises_what_the_page_shows(tmp_path: Path) -> None:
    [error] = re.findall(r"```\n(AttributeError: .*)\n```", PAGE)
    assert error in output(tmp_path, by_horovodrun("horovod_fit_before.py"), fails=True)


def test_without_its_callbacks_the_keras_binding_averages_no_gradients(tmp_path: Path) -> None:
    end = 'print("weights of rank", hvd.rank(), sum(float(abs(weight.numpy()).sum()) for weight in model.weights))\n'
    program = changed(
        tmp_path, "horovod_fit_before.py", {**CALLBACKS, "if hvd.rank() == 0": end + "if hvd.rank() == 0"}
    )
    printed = output(tmp_path, horovodrun(2, [program]))
    [quoted] = re.findall(r"(\d+\.\d+(?:,\s\d+\.\d+){2}) on rank 0", PAGE)
    assert same(printed, [float(number) for number in quoted.split(",")], tolerance=1e-5)
    assert losses(printed) != losses((PAGES / "index.md").read_text())
    weights = dict(re.findall(r"weights of rank (\d) (\S+)", printed))
    assert weights["0"] != weights["1"]


@pytest.mark.parity_all
def test_keras_2_prints_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = interpreter_with("tf_keras", "horovod")
    # Horovod imports what is named keras.
    horovod = "import horovod.tensorflow.keras as hvd\n"
    keras_2 = "import sys\n\nimport tf_keras as keras\n\nsys.modules['keras'] = keras\n"
    changes = {horovod + "import keras\n": keras_2 + horovod}
    program = changed(tmp_path, "horovod_fit_before.py", changes)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    runner = [interpreter, "-m", "horovod.runner.launch", "-np", "2", "--network-interfaces", "lo"]
    assert same(output(tmp_path, [*runner, interpreter, program]))


def test_the_names_of_the_table_exist() -> None:
    import horovod.tensorflow
    import horovod.tensorflow.keras

    import keras_ext
    import strategies

    for name in re.findall(r"`hvd\.([A-Za-z_.]+)", PAGE):
        found = horovod.tensorflow if name == "DistributedGradientTape" else horovod.tensorflow.keras
        for part in name.split("."):
            found = getattr(found, part)
    for package, name in re.findall(r"`(strategies|keras_ext)\.([A-Za-z_]+)\b", PAGE):
        if not (ROOT / package / f"{name}.py").exists():
            getattr({"strategies": strategies, "keras_ext": keras_ext}[package], name)
