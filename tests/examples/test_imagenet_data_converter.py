"""`python examples/imagenet/to_tfrecords.py`, killed and run again."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf
from imagenet import batches, converting, data
from imagenet.errors import DataError
from imagenet.synthetic import Request, make_synthetic

from tests.examples import EXAMPLES
from tests.processes import python

PROGRAM = [str(EXAMPLES / "imagenet" / "to_tfrecords.py"), "--verbose=0", "--processes=1"]
REQUEST = Request(num_classes=4, images_per_class=60, val_images_per_class=10, min_side=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_synthetic(tmp_path_factory.mktemp("images") / "a set", REQUEST)
    (folder / "synset_words.txt").write_text("n90000000 zero, nought\n")
    return folder


def run(*flags: str) -> tuple[dict[str, float], subprocess.CompletedProcess[str]]:
    """Returns the pairs in the last line, and the finished program."""
    done = subprocess.run(python(*PROGRAM, *flags), capture_output=True, text=True, timeout=200, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", last)}, done


def examples(shard: Path) -> list[tf.train.Example]:
    return [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(os.fsencode(shard))]


def check_shards(folder: Path, output: Path, num_shards: int) -> None:
    """Asserts that every usable image is in one shard, and reads like its file."""
    for name, shards in (("train", num_shards), ("val", 1)):
        files, records = data.open_split(folder, name), data.open_split(output, name)
        assert records.form == f"{shards} TFRecord shards"
        assert records.num_rows == files.num_rows - 2
        assert records.classes == files.classes
        sums = []
        for split in (files, records):
            dataset = batches.evaluation_batches(split, image_size=8, batch_size=100)
            found = [
                (int(label), int(image.sum()) // 200)
                for images, labels, weights in dataset.as_numpy_iterator()
                for image, label, weight in zip(images, labels, weights, strict=True)
                if weight
            ]
            sums.append(np.array(sorted(found)))
        np.testing.assert_array_equal(sums[0][:, 0], sums[1][:, 0])
        # The re-encoded odd images differ a little.
        assert (np.abs(sums[0][:, 1] - sums[1][:, 1]) > 1).mean() < 0.05


@pytest.mark.timeout(500)
def test_a_killed_run_is_resumed(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "shards"
    flags = [f"--data_dir={folder}", f"--output_dir={output}", "--num_shards=24", "--num_val_shards=1"]
    command = [sys.executable, *PROGRAM, *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    try:
        end = time.monotonic() + 150
        while not list(output.glob("train-*")):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.005)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # No worker survives its parent.
    assert psutil.wait_procs(children, 60)[1] == []
    finished = {path: path.stat().st_mtime_ns for path in output.glob("train-*")}

    # Incomplete shards: of a killed process, and of another run that is still writing.
    (output / ".train-00003-of-00024.1.2").write_bytes(b"half")
    others = output / ".validation-00000-of-00001.3.4"
    with others.open("wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        result, done = run(*flags)
    assert done.returncode == 0, done.stderr
    assert list(output.glob(".*")) == [others]
    assert f"{25 - result['made']:.0f} kept from a former run" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert 1 <= len(finished) <= 25 - result["made"]
    assert (result["images"], result["shards"], result["skipped"]) == (276, 25, 4)
    check_shards(folder, output, 24)

    # Run again: nothing to do, and the same numbers.
    again, done = run(*flags)
    assert (again["images"], again["shards"], again["skipped"], again["made"]) == (276, 25, 4, 0)
    # Another request is refused.
    _, done = run(*flags, "--seed=1")
    assert done.returncode == 1
    assert "holds shards of another request" in done.stderr
    assert "Traceback" not in done.stderr

    first = [example for i in range(6) for example in examples(output / f"train-{i:05d}-of-00024")]
    assert 55 < len(first) <= 60
    features = {name: value for example in first[:1] for name, value in example.features.feature.items()}
    assert {name for name in features if name != "image/class/text"} == {
        *("image/encoded", "image/height", "image/width", "image/colorspace", "image/channels", "image/format"),
        *("image/filename", "image/class/label", "image/class/synset"),
    }
    zero = [
        example.features.feature
        for example in first
        if example.features.feature["image/class/synset"].bytes_list.value[0] == b"n90000000"
    ]
    assert {feature["image/class/text"].bytes_list.value[0] for feature in zero} == {b"zero, nought"}
    assert {feature["image/class/label"].int64_list.value[0] for feature in zero} == {1}
    # Classes are mixed in every shard.
    labels = {example.features.feature["image/class/label"].int64_list.value[0] for example in first}
    assert labels == {1, 2, 3, 4}


def test_splits_one_by_one_and_names_of_any_kind(tmp_path: Path) -> None:
    names = ["Käfer", "great white shark", os.fsdecode(b"\xff\xe9")]
    pixels = np.arange(3, dtype=np.uint8) * 80
    for name in names:
        for part in ("train", "val"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            image = np.broadcast_to(pixels[names.index(name)], (8, 8, 3))
            (folder / f"{name} ü.JPEG").write_bytes(tf.io.encode_jpeg(image).numpy())
    output = tmp_path / os.fsdecode(b"shards \xff")
    (tmp_path / "images" / "synset_words.txt").write_bytes("Käfer schön".encode() + b" \xff\n")
    val, train = (data.open_split(tmp_path / "images", name) for name in ("val", "train"))
    one = {"train": 1, "val": 1}
    converting.claim(output, [val], one, 0)
    done = converting.convert(converting.plan(val, output, 1, 0), 1, lambda count: None)
    assert done == converting.Outcome(3, 0, ())
    records = data.open_split(output, "val")
    assert records.classes == val.classes == train.classes == tuple(sorted(names))
    ((images, labels, _),) = batches.evaluation_batches(records, image_size=4, batch_size=9).as_numpy_iterator()
    found = {records.classes[label]: int(image[0, 0, 0]) for image, label in zip(images, labels, strict=True)}
    assert found == dict(zip(names, pixels.tolist(), strict=True))
    features = [example.features.feature for example in examples(output / "validation-00000-of-00001")]
    of_class = {feature["image/class/synset"].bytes_list.value[0]: feature for feature in features}
    assert set(of_class) == {os.fsencode(name) for name in names}
    assert {feature["image/filename"].bytes_list.value[0] for feature in features} == {
        os.fsencode(f"{name} ü.JPEG") for name in names
    }
    assert of_class["Käfer".encode()]["image/class/text"].bytes_list.value[0] == "schön".encode() + b" \xff"

    # The other split later, or on another machine: the same classes, and the same request for each.
    converting.claim(output, [train], one, 0)
    converting.claim(output, [train, val], one, 0)
    with pytest.raises(DataError, match=r"of another request.*conversion-val\.json"):
        converting.claim(output, [val], {"val": 2}, 0)
    last = tmp_path / "images" / "train" / os.fsdecode(b"\xff\xff")
    last.mkdir()
    (last / "a.JPEG").touch()
    with pytest.raises(DataError, match=r"classes that have changed since.*classes\.txt"):
        converting.claim(output, [data.open_split(tmp_path / "images", "val")], one, 0)
    last.rename(last.with_name("two\nlines"))
    with pytest.raises(DataError, match="a folder's name has a line break"):
        converting.claim(tmp_path / "other", [data.open_split(tmp_path / "images", "val")], one, 0)


def test_plans_and_refusals(folder: Path, tmp_path: Path) -> None:
    split = data.open_split(folder, "train")
    shards = converting.plan(split, tmp_path, 7, seed=0)
    assert {len(shard.files) for shard in shards} == {34, 35}
    assert len({file for shard in shards for file in shard.files}) == 240
    assert converting.plan(split, tmp_path, 7, seed=0) == shards
    assert converting.plan(split, tmp_path, 7, seed=1) != shards
    assert shards[6].path.name == "train-00006-of-00007"
    with pytest.raises(DataError, match="Expected 1 to 240 shards"):
        converting.plan(split, tmp_path, 241, seed=0)
    shards[0].path.write_bytes(b"not a shard, but long enough for a header")
    with pytest.raises(DataError, match="damaged, or not of this set"):
        converting.finished(shards[0])
    with pytest.raises(DataError, match="holds shards that this program has not made"):
        converting.claim(tmp_path, [split], {"train": 7}, 0)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--data_dir=nowhere", "--output_dir=out"], "error: nowhere: not a directory"),
        (["--output_dir=out"], "Flag --data_dir must have a value"),
    ],
)
def test_refuses_in_one_line(flags: list[str], reason: str, tmp_path: Path) -> None:
    command = python(*PROGRAM, *flags)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert reason in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
