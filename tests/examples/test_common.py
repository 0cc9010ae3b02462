"""What the examples share: devices and meshes from flags, folders of runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tensorflow as tf
from common import devices, folders
from common.options import OptionError, RunOptions


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"] if kind == "GPU" else [])
    assert devices.choose_devices(None) == ["GPU:0", "GPU:1"]
    assert devices.choose_devices(1) == ["GPU:0"]
    with pytest.raises(OptionError, match="at most 2, the number of GPUs here, received 3"):
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
    ],
)
def test_mesh(text: str | None, mesh: dict[str, int] | None) -> None:
    assert devices.mesh_of(text) == mesh


@pytest.mark.parametrize("text", ["", "2", "data", "data=", "data=0", "data=-2", "rows=2", "data=2,data=2", "data=2 2"])
def test_no_mesh(text: str) -> None:
    with pytest.raises(OptionError, match=r"--mesh: expected axes of .* as in data=2,pipe=2, received"):
        devices.mesh_of(text)


def test_a_mesh_makes_the_devices_it_needs() -> None:
    strategy = devices.make_strategy("mirrored", mesh={"data": 2, "tensor": 3})
    assert strategy.num_replicas_in_sync == 2
    with pytest.raises(OptionError, match="--strategy=mirrored: "):
        devices.make_strategy("mirrored", 3, {"pipe": 2})


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """Of some example."""

    epochs: int = 1


def test_a_folder_for_each_set_of_options(tmp_path: Path) -> None:
    runs = str(tmp_path / "all runs")
    first = folders.run_folder("mnist", Options(), runs)
    assert first.parent == Path(runs)
    assert first.name.startswith("mnist-")
    assert folders.run_folder("mnist", Options(verbose=0, profile=True), runs) == first
    assert folders.run_folder("mnist", Options(epochs=2), runs) != first
    assert folders.run_folder("mnist", Options(strategy="horovod"), runs) != first


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    options = Options(run_dir=str(tmp_path / "my run"), epochs=2)
    folder = folders.run_folder("mnist", options)
    assert json.loads((folder / "options.json").read_text())["epochs"] == 2
    assert folders.run_folder("mnist", dataclasses.replace(options, strategy="horovod", mesh="data=2")) == folder
    with pytest.raises(OptionError, match=r"is a run with --epochs=2 \(now 3\)\. Give the same"):
        folders.run_folder("mnist", dataclasses.replace(options, epochs=3))
    (folder / "options.json").write_text("{")
    with pytest.raises(OptionError, match="cannot be read"):
        folders.run_folder("mnist", options)
