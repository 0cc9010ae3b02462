"""The common parts of the examples: devices and meshes from flags, run folders."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import devices, folders, reports
from common.options import OptionError, PlacingOptions, RunOptions
from common.pictures import timeline_image
from common.placing import place

from tests.examples import EXAMPLES
from tests.processes import python


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"] if kind == "GPU" else [])
    assert devices.choose_devices(None) == ["GPU:0", "GPU:1"]
    assert devices.choose_devices(1) == ["GPU:0"]
    with pytest.raises(OptionError, match="at most 2, the number of GPUs found, received 3"):
        devices.choose_devices(3)


def test_logical_cpu_devices() -> None:
    assert devices.choose_devices(None) == ["CPU:0"]
    assert devices.choose_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]


def test_unknown_strategy() -> None:
    with pytest.raises(OptionError, match="received 'ring'"):
        devices.make_strategy("ring")


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        (None, None),
        ("data=2", {"data": 2}),
        ("data=-1, pipe=2", {"data": -1, "pipe": 2}),
        ("data=2,pipe=2,tensor=2", {"data": 2, "pipe": 2, "tensor": 2}),
        ("data=2,expert=2", {"data": 2, "expert": 2}),
    ],
)
def test_mesh(text: str | None, mesh: dict[str, int] | None) -> None:
    assert devices.mesh_of(text) == mesh


@pytest.mark.parametrize(
    "text", ["", "2", "data", "data=", "data=0", "data=-2", "data=-10", "data=²", "rows=2", "data=2,data=2", "data=2 2"]
)
def test_no_mesh(text: str) -> None:
    with pytest.raises(OptionError, match=r"--mesh: expected axes of .* as in data=2,pipe=2, received"):
        devices.mesh_of(text)


def test_a_mesh_makes_the_devices_it_needs() -> None:
    strategy = devices.make_strategy("mirrored", mesh={"data": 2, "tensor": 3})
    assert strategy.num_replicas_in_sync == 2
    with pytest.raises(OptionError, match="--strategy=mirrored: "):
        devices.make_strategy("mirrored", 3, {"pipe": 2})


@pytest.mark.parametrize(
    ("mesh", "world_size", "num_devices"),
    [
        (None, 1, 1),
        (None, 4, 1),
        ({"data": 2, "pipe": 2}, 1, 4),
        ({"data": 2, "pipe": 2}, 2, 2),
        ({"data": 1, "pipe": 2, "tensor": 2}, 4, 1),
        ({"pipe": 2, "tensor": 4}, 2, 4),
        ({"pipe": 4}, 4, 1),
        ({"data": -1, "pipe": 2}, 4, 2),
        ({"data": 2, "tensor": -1}, 4, 1),
    ],
)
def test_devices_of_a_process(mesh: dict[str, int] | None, world_size: int, num_devices: int) -> None:
    assert devices.devices_of_a_process(mesh, world_size) == num_devices


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """The options of an example."""

    epochs: int = 1


def test_a_folder_for_each_set_of_options(tmp_path: Path) -> None:
    runs = str(tmp_path / "all runs")
    first = folders.run_folder("mnist", Options(), runs)
    assert first.parent == Path(runs)
    assert first.name.startswith("mnist-")
    assert folders.run_folder("mnist", Options(verbose=0, profile=True), runs) == first
    assert folders.run_folder("mnist", Options(epochs=2), runs) != first
    assert folders.run_folder("mnist", Options(strategy="horovod"), runs) != first
    assert not list(first.iterdir())


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    options = Options(run_dir=str(tmp_path / "my run"), epochs=2)
    folder = folders.run_folder("mnist", options)
    strategy = tf.distribute.get_strategy()
    folders.keep_run(folder, options, "these images", strategy)
    assert json.loads((folder / "options.json").read_text())["epochs"] == 2
    assert folders.run_folder("mnist", dataclasses.replace(options, strategy="horovod", mesh="data=2")) == folder
    with pytest.raises(OptionError, match=r"is a run with --epochs=2 \(now 3\)\. Use the same"):
        folders.run_folder("mnist", dataclasses.replace(options, epochs=3))
    folders.keep_run(folder, dataclasses.replace(options, mesh="pipe=2"), "these images", strategy)
    with pytest.raises(OptionError, match="is a run with other data"):
        folders.keep_run(folder, options, "others", strategy)
    (folder / "options.json").write_text("{")
    with pytest.raises(OptionError, match="cannot be read"):
        folders.run_folder("mnist", options)


def _layers() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="up"), keras.layers.Dense(2, name="down")])


@pytest.mark.parametrize(
    ("mesh", "remat", "reason"),
    [
        ({"data": 1}, "all_but_last", r"only --remat=all works.* a mesh of \{'data': 1\}"),
        ({"tensor": 2}, "all", "only without split layers"),
        ({"pipe": 4}, None, "--mesh: "),
    ],
)
def test_what_cannot_be_placed(mesh: dict[str, int], remat: str | None, reason: str) -> None:
    strategy = devices.make_strategy("mirrored", mesh=mesh)
    with strategy.scope(), pytest.raises(OptionError, match=reason):
        place(_layers, strategy, PlacingOptions(remat=remat))


def test_tensorboard_is_shown_memory_and_timeline(tmp_path: Path) -> None:
    x = np.ones((8, 4), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(4)
    strategy = devices.make_strategy("mirrored", mesh={"pipe": 2})
    with strategy.scope():
        model: Any = place(_layers, strategy, PlacingOptions(microbatches=2, partition="uniform"))
        model.compile("sgd", "mse")
    callbacks = reports.reports_for(
        # Measured in the middle of `fit`, which continues.
        model,
        tmp_path / "logs",
        lambda first, count: dataset.repeat().take(count),
        RunOptions(profile=True),
        4,
    )
    model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0, shuffle=False)
    assert list((tmp_path / "logs" / "train" / "plugins" / "profile").iterdir())
    written = b"".join(path.read_bytes() for path in (tmp_path / "logs" / "devices").iterdir())
    for entry in (b"memory_bytes/CPU:0 weights", b"memory_bytes/CPU:1 optimizer", b"pipeline", b"\x89PNG"):
        assert entry in written
    picture = timeline_image(model.pipeline_timeline())
    assert picture.shape[0] == 1
    assert picture.shape[-1] == 3
    # Blue, orange, and grey where a device is idle.
    assert {(0, 114, 178), (230, 159, 0), (238, 238, 238)} <= set(map(tuple, picture.reshape(-1, 3).tolist()))


@pytest.mark.parametrize(
    ("example", "module"),
    [("gpt", "options"), ("imagenet", "train"), ("mnist", "train"), ("recommender", "options")],
)
def test_every_option_has_a_flag_with_its_default(example: str, module: str) -> None:
    # In a separate process: flags are global, and another example's may have the same names.
    program = (
        "import dataclasses, sys; sys.path.insert(0, 'examples'); from absl import flags; "
        f"from {example} import main, {module}; fields = dataclasses.fields({module}.Options); "
        "print([field.name for field in fields if flags.FLAGS[field.name].default != field.default], len(fields) > 9)"
    )
    command = python("-c", program)
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "[] True\n", done.stderr
