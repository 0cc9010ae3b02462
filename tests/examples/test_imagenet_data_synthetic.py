"""The synthetic set: complete or absent, the same each time, made once by the first caller."""

import errno
import fcntl
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from imagenet import batches, data
from imagenet.errors import DataError
from imagenet.synthetic import NUM_UNUSABLE_KINDS, ODD_KINDS, Request, class_name, make_synthetic, picture

from tests.examples import EXAMPLES
from tests.processes import Programs

SMALL = Request(num_classes=3, images_per_class=8, val_images_per_class=5, min_side=32, max_side=48)

MAKE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from imagenet.synthetic import *; "
    "import logging; logging.basicConfig(level=logging.INFO); "
    "make_synthetic(sys.argv[2], Request(images_per_class=int(sys.argv[3])))"
)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.JPEG")}


def test_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = (files(make_synthetic(tmp_path / name, SMALL)) for name in "ab")
    assert first == second
    assert len(first) == 3 * (8 + 5)
    other = Request(**{**SMALL.__dict__, "seed": 1})
    assert files(make_synthetic(tmp_path / "c", other)) != first
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.lock", ".b.lock", ".c.lock", "a", "b", "c"]


def test_what_is_there_stays_or_is_refused(tmp_path: Path) -> None:
    folder = make_synthetic(tmp_path / "set", SMALL)
    (folder / "train" / class_name(0) / "mark").touch()
    make_synthetic(folder, SMALL)
    assert (folder / "train" / class_name(0) / "mark").exists()
    with pytest.raises(DataError, match="a synthetic set of another kind"):
        make_synthetic(folder, Request())
    with pytest.raises(DataError, match=r"holds no synthetic set\. Delete it, or name another folder"):
        make_synthetic(tmp_path, SMALL)
    with pytest.raises(DataError, match="cannot be made"):
        make_synthetic(folder / "synthetic.json" / "set", SMALL)
    with pytest.raises(DataError, match="Expected at least 12 images in each split"):
        make_synthetic(tmp_path / "tiny", Request(num_classes=2, images_per_class=5))


def test_is_read_with_its_odd_files(tmp_path: Path) -> None:
    folder = make_synthetic(tmp_path / "set", SMALL)
    for name in ("train", "val"):
        split = data.open_split(folder, name)
        assert split.classes == tuple(class_name(label) for label in range(3))
        skipped = batches.Skipped()
        weights = [
            batch[2]
            for batch in batches.evaluation_batches(
                split, image_size=16, batch_size=16, skipped=skipped
            ).as_numpy_iterator()
        ]
        assert split.num_rows - np.concatenate(weights).sum() == skipped.count == NUM_UNUSABLE_KINDS
    assert len(ODD_KINDS) == 6


def test_classes_differ_more_than_their_images() -> None:
    request = Request()
    means = np.array(
        [
            [picture(np.random.default_rng([label, i]), label, request).mean((0, 1)) for i in range(8)]
            for label in range(10)
        ]
    )
    colours = means / means.sum(axis=2, keepdims=True)
    centres = colours.mean(axis=1)
    nearest = np.argmin(np.linalg.norm(colours[:, :, None] - centres, axis=3), axis=2)
    assert (nearest == np.arange(10)[:, None]).mean() > 0.8


def test_processes_that_call_at_once_make_one_set(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(EXAMPLES), str(tmp_path / "set"), "20"]
    with Programs(tmp_path, [command] * 3) as programs:
        codes = programs.wait(200)
        output = programs.output()
    assert codes == [0, 0, 0], output
    assert output.count("data: made 400 synthetic images") == 1
    assert len(files(tmp_path / "set")) == 400
    assert not list(tmp_path.glob(".set.making-*"))


def test_where_nothing_can_be_locked_others_work_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = tmp_path / ".set.making-other"
    others.mkdir()

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert len(files(make_synthetic(tmp_path / "set", SMALL))) == 3 * (8 + 5)
    assert list(tmp_path.glob(".set.making-*")) == [others]


def test_pillow_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    # Users with their own images import the module, too.
    program = f"import sys; sys.modules['PIL'] = None; {MAKE}"
    command = [sys.executable, "-c", program, str(EXAMPLES), str(tmp_path / "set"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "imagenet.errors.DataError: Synthetic images need Pillow, which is not installed"
    )
    assert "pip install pillow" in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == [".set.lock"]


def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    target = tmp_path / "set"
    command = [sys.executable, "-c", MAKE, str(EXAMPLES), str(target), "5000"]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 200
        while not list(tmp_path.glob(".set.making-*/train/*/*.JPEG")):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.glob(".set.making-*"))
    assert not target.exists()
    make_synthetic(target, SMALL)
    assert not list(tmp_path.glob(".set.making-*"))
