"""The language model with a replica that spans four processes: its curve, its file, and resuming from both."""

import csv
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.placing import place
from gpt import rows, train
from gpt.options import Options
from gpt.text import Text, load
from gpt.tokens import ByteTokenizer

from tests.examples import EXAMPLES
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.processes import Programs, horovodrun, launcher, python

MAIN = str(EXAMPLES / "gpt" / "main.py")
TEXT = b"Peter Piper picked a peck of pickled peppers; where is the peck of pickled peppers? " * 9
SMALL: dict[str, Any] = {
    "sequence_length": 8,
    "batch_size": 4,
    "units": 16,
    "num_layers": 1,
    "num_heads": 2,
    "warmup_steps": 1,
    "steps_per_epoch": 3,
    "epochs": 2,
    "microbatches": 2,
    "partition": "uniform",
    "sample_length": 6,
    "prompt": "Pet",
    "temperature": 0.0,
    "verbose": 0,
}
COMPARES_ALONE = """
import os, sys
os.environ.update(KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1")
# An import of them fails.
sys.modules["strategies"] = sys.modules["keras_ext"] = sys.modules["common"] = sys.modules["gpt"] = None
import keras, numpy
one, several = map(keras.models.load_model, sys.argv[1:])
for weight, same in zip(one.get_weights(), several.get_weights(), strict=True):
    numpy.testing.assert_allclose(same, weight, rtol=0, atol=1e-5)
tokens = numpy.arange(16).reshape(2, 8) % 7
numpy.testing.assert_allclose(several.predict(tokens, verbose=0), one.predict(tokens, verbose=0), rtol=0, atol=1e-4)
print([layer.__class__.__module__.partition(".")[0] for layer in several.layers if layer.name == "logits"])
"""


def _losses(run_dir: Path) -> dict[str, list[float]]:
    with (run_dir / "history.csv").open() as file:
        lines = list(csv.DictReader(file))
    return {name: [float(line[name]) for line in lines] for name in ("loss", "val_loss", "perplexity")}


def _assert_near(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def _continued(axes: dict[str, int], saved: Path, text: Text) -> list[float]:
    """Returns the losses of two more steps of a saved model, on a mesh of this process."""
    packed = rows.pack([ByteTokenizer().encode(document) for document in text.documents], ByteTokenizer.separator)
    options = Options(**SMALL)
    strategy = mesh_strategy(axes)
    with strategy.scope():
        model = train.compiled(place(lambda: keras.models.load_model(saved), strategy, options), options)
    batches = rows.batches(rows.split(packed, options.sequence_length)[0], options.batch_size, seed=5, num_steps=2)
    losses: list[float] = model.fit(batches.repeat(), epochs=2, steps_per_epoch=1, shuffle=False, verbose=0).history[
        "loss"
    ]
    return losses


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parity_all
@pytest.mark.parametrize("mesh", ["data=1,pipe=2,tensor=2", "pipe=4"])
@pytest.mark.parametrize("launched_by", ["launch", "horovodrun"])
def test_trains_saves_and_goes_on(launched_by: str, mesh: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    text = load(str(tmp_path / "text"))
    common = Options(**SMALL, data_file=str(tmp_path / "text"))
    one, several = (str(tmp_path / f"{name}.keras") for name in ("one", "several"))
    alone = train.run(replace(common, run_dir=str(tmp_path / "one"), save=one), text)

    flags = {**SMALL, "data_file": common.data_file, "run_dir": tmp_path / "several", "save": several, "mesh": mesh}
    program = [MAIN, *(f"--{name}={value}" for name, value in flags.items())]
    if launched_by == "horovodrun":
        command = horovodrun(4, [*program, "--strategy=horovod"])
    else:
        command = launcher(4, program)
        command.append("--strategy=multi_worker")
    with Programs(tmp_path, [command]) as programs:
        codes = programs.wait(240)
        output = programs.output(20000)
    assert codes == [0], output
    assert output.count("result ") == output.count("sample:") == 1, output
    assert alone.sample is not None
    assert alone.sample in output
    _assert_near(_losses(tmp_path / "several"), _losses(tmp_path / "one"))

    # The file is a plain Keras file, with the weights of one device.
    done = subprocess.run(
        python("-c", COMPARES_ALONE, one, several), cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.stdout.endswith("['keras']\n"), done.stderr

    # Training continues from it with layers split over the devices of one process.
    np.testing.assert_allclose(
        _continued({"tensor": 2}, Path(several), text), _continued({"data": 1}, Path(several), text), rtol=1e-5
    )
    # The run also resumes, with the optimizer's slots, from the checkpoint of its first epoch.
    for path in (tmp_path / "several" / "checkpoints").glob("*000000006*"):
        path.unlink()
    again = train.run(replace(common, run_dir=str(tmp_path / "several"), mesh="tensor=2"), text)
    assert again.sample == alone.sample
    _assert_near(_losses(tmp_path / "several"), _losses(tmp_path / "one"))
    assert asdict(again.outcome)["num_devices"] == 2
