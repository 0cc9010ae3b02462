"""ImageNet's example has the curve of one device under every strategy and mesh, with odd files and augmentation."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from common.training import Outcome
from imagenet import train
from imagenet.synthetic import Request, make_synthetic

from tests.examples import imagenet_runs
from tests.processes import Programs, horovodrun, launcher

PROGRAM = [str(Path(__file__).with_name("imagenet_runs.py"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with images of every odd kind, also used for runs."""
    made = tmp_path_factory.mktemp("image net")
    make_synthetic(made / "images", Request(6, images_per_class=10, val_images_per_class=5, min_side=24, max_side=40))
    return made


@pytest.fixture(scope="module")
def curve(folder: Path) -> dict[str, list[float]]:
    """Returns the curve of one device."""
    found = imagenet_runs.run(folder, "one device", devices=1)
    assert {name: len(values) for name, values in found.items()} == {
        name: 2 for part in ("", "val_") for name in (f"{part}loss", f"{part}accuracy", f"{part}top5", f"{part}skipped")
    }
    # Each split has an empty file and one that is not an image.
    assert found["val_skipped"] == [2.0, 2.0]
    # One of them is among the rows that the second epoch does not use.
    assert found["skipped"] == [2.0, 1.0]
    assert found["loss"][1] < found["loss"][0]
    return found


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param("data=3", marks=pytest.mark.parity_all),
        "data=2,pipe=2",
        pytest.param("data=2,tensor=2", marks=pytest.mark.parity_all),
        pytest.param("pipe=2,tensor=2", marks=pytest.mark.parity_all),
    ],
)
def test_meshes_of_one_process(mesh: str, folder: Path, curve: dict[str, list[float]]) -> None:
    _assert_equal(imagenet_runs.run(folder, mesh, mesh=mesh), curve)


# The example of a language model trains in two processes without the flag.
@pytest.mark.parity_all
@pytest.mark.parametrize("strategy", ["multi_worker", "horovod"])
def test_meshes_of_two_processes(strategy: str, folder: Path, curve: dict[str, list[float]], tmp_path: Path) -> None:
    _run_on_several(strategy, 2, folder, tmp_path)
    for mesh in imagenet_runs.MESHES:
        _assert_equal(_curve_of(folder / f"{strategy} {mesh}", curve), curve)
    # Each epoch has 4 batches of 13 rows, the second with other numbers, and 30 rows to evaluate. Only one process
    # decodes each row: 7 or 6 rows of a batch.
    decoded = [json.loads(path.read_text()) for path in folder.glob(f"{strategy} rows of *.json")]
    assert sorted(map(len, decoded)) == [76, 88]
    assert sorted(itertools.chain(*decoded)) == sorted([*range(104), *range(30), *range(30)])


@pytest.mark.parity_all
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["multi_worker", "horovod"])
@pytest.mark.parametrize("num_processes", imagenet_runs.SPANNING_MESHES)
def test_replicas_that_span_processes(
    num_processes: int, strategy: str, folder: Path, curve: dict[str, list[float]], tmp_path: Path
) -> None:
    meshes = imagenet_runs.SPANNING_MESHES[num_processes]
    _run_on_several(strategy, num_processes, folder, tmp_path, *meshes)
    for mesh in meshes:
        _assert_equal(_curve_of(folder / f"{strategy} {mesh}", curve), curve)


def _run_on_several(strategy: str, num_processes: int, folder: Path, logs: Path, *meshes: str) -> None:
    program = [*PROGRAM, strategy, str(folder), *meshes]
    command = horovodrun(num_processes, program)
    if strategy == "multi_worker":
        command = launcher(num_processes, program)
    with Programs(logs, [command]) as programs:
        codes = programs.wait(280 * num_processes // 2)
        output = programs.output(20000)
    assert codes == [0], output


def _curve_of(run_dir: Path, like: dict[str, list[float]]) -> dict[str, list[float]]:
    with (run_dir / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in like}


def test_the_last_line_counts_what_the_last_epoch_left_out() -> None:
    """An epoch has whole batches only: an unusable file may be among the rows left over."""
    last = {"val_accuracy": [0.1, 0.2, 0.3], "val_top5": [1.0] * 3, "val_loss": [2.0] * 3, "loss": [3.0] * 3}
    skipped = {"skipped": [0.0, 1.0, 0.0], "val_skipped": [2.0, 2.0, 2.0]}
    outcome = Outcome(
        last | skipped,
        10.0,
        0.0,
        0.0,
        num_devices=2,
        is_chief=True,
        seconds=1.0,
        unit="images",
        folder=Path("runs"),
    )
    line = str(train.Result(outcome))
    assert " val_accuracy=0.3000 " in line
    assert " skipped=3 " in line
    assert line.endswith(" epochs=3 devices=2 seconds=1.0")


def _assert_equal(found: dict[str, list[float]], curve: dict[str, list[float]]) -> None:
    assert found.keys() == curve.keys()
    for name, values in curve.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6, err_msg=name)
