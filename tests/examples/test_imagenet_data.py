"""Images are found in every form, and unusable ones are refused by name and reason. No image is decoded."""

import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from imagenet import data, index_cache, records
from imagenet.errors import DataError

CAT, DOG, ELK = "n00000001", "n00000002", "n00000003"


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the user's cache folder, empty."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"image")


def write_shard(path: Path, contents: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)


def rows(split: data.Split) -> list[tuple[str, int]]:
    return [(str(split.path(r).relative_to(split.root)), int(split.index.labels[r])) for r in range(split.num_rows)]


def refusal(folder: Path, name: str = "train") -> str:
    """Returns the message that refuses the folder; asserts one line, and a whole sentence."""
    with pytest.raises(DataError) as caught:
        data.open_split(folder, name)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_class_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, f"train/{DOG}/b c.JPEG", f"train/{DOG}/a.jpg", f"train/{CAT}/ü.PNG", f"train/{CAT}/._x.JPEG")
    write(tmp_path, f"train/{CAT}/notes.txt", f"train/{ELK}/notes.txt", f"val/{DOG}/v.jpeg", "train/.git/x.jpg")
    with caplog.at_level(logging.INFO):
        train, val = data.open_split(tmp_path, "train"), data.open_split(tmp_path, "val")
    assert rows(train) == [(f"train/{CAT}/ü.PNG", 0), (f"train/{DOG}/a.jpg", 1), (f"train/{DOG}/b c.JPEG", 1)]
    assert rows(val) == [(f"val/{DOG}/v.jpeg", 1)]
    assert train.classes == val.classes == (CAT, DOG)
    assert f"1 folder(s) without images are no classes: {ELK}" in caplog.text
    assert f"data: val: class folders in {tmp_path}, 1 images of 2 classes" in caplog.text


def test_a_class_that_is_not_trained(tmp_path: Path) -> None:
    write(tmp_path, f"train/{CAT}/a.jpg", f"val/{DOG}/v.jpg")
    assert f"1 class(es) without training images, first '{DOG}'" in refusal(tmp_path, "val")


def test_named_files(tmp_path: Path) -> None:
    write(tmp_path, f"train/{DOG}_1.JPEG", f"train/{CAT}_7.JPEG", f"val/{CAT}_9.JPEG")
    assert rows(data.open_split(tmp_path, "train")) == [(f"train/{CAT}_7.JPEG", 0), (f"train/{DOG}_1.JPEG", 1)]
    assert rows(data.open_split(tmp_path, "val")) == [(f"val/{CAT}_9.JPEG", 0)]
    write(tmp_path, "train/holiday.jpg")
    assert "holiday.jpg: its class is not known" in refusal(tmp_path)


def test_one_folder_of_named_files_is_split(tmp_path: Path) -> None:
    write(tmp_path, *[f"{wnid}_{i:02d}.JPEG" for wnid in (CAT, DOG) for i in range(30)], f"{ELK}_1.JPEG")
    train, val = data.open_split(tmp_path, "train"), data.open_split(tmp_path, "val")
    assert [name for name, _ in rows(val)] == [f"{wnid}_{i:02d}.JPEG" for wnid in (CAT, DOG) for i in (0, 25)]
    assert len({*rows(train), *rows(val)}) == train.num_rows + val.num_rows == 61
    assert train.num_classes == val.num_classes == 3


def test_official_validation_images_have_no_labels(tmp_path: Path) -> None:
    write(tmp_path, f"train/{CAT}/a.JPEG", "val/ILSVRC2012_val_00000001.JPEG")
    message = refusal(tmp_path, "val")
    assert "without their labels (ILSVRC2012_val_00000001.JPEG)" in message
    assert "Sort them into folders by class" in message


def test_nothing_there(tmp_path: Path) -> None:
    assert "not a directory" in refusal(tmp_path / "nowhere")
    assert "holds no images for val: neither shards like validation-00000-of-01024 nor" in refusal(tmp_path, "val")
    (tmp_path / "train").mkdir()
    assert "holds no images" in refusal(tmp_path)
    assert "Expected the split train or val, received 'test'" in refusal(tmp_path, "test")


@pytest.mark.parametrize("folders", [("", ""), ("train/", "validation/"), ("train/", "val/")])
def test_shards(tmp_path: Path, folders: tuple[str, str]) -> None:
    contents = [[bytes([shard]) * (10 * i) for i in range(shard + 1)] for shard in range(3)]
    for shard, content in enumerate(contents):
        write_shard(tmp_path / f"{folders[0]}train-{shard:05d}-of-00003", content)
    write_shard(tmp_path / f"{folders[1]}validation-00000-of-00001", [b"xyz"])
    train, val = data.open_split(tmp_path, "train"), data.open_split(tmp_path, "val")
    assert train.in_records
    assert train.num_classes == val.num_classes == 1000
    assert val.num_rows == 1
    found = []
    for row in range(train.num_rows):
        begin = int(train.index.offsets[row]) + records.HEADER_BYTES
        found.append(train.path(row).read_bytes()[begin : begin + int(train.index.lengths[row])])
    assert found == [content for shard in contents for content in shard]


def test_shards_as_tfds_names_them_and_a_list_of_classes(tmp_path: Path) -> None:
    write_shard(tmp_path / "imagenet2012-train.tfrecord-00000-of-00001", [b"a", b"b"])
    (tmp_path / "label.labels.txt").write_text(f"{CAT}\n{DOG}\n")
    split = data.open_split(tmp_path, "train")
    assert (split.num_rows, split.classes) == (2, (CAT, DOG))
    # Names of several words, and line ends of Windows.
    (tmp_path / "label.labels.txt").write_bytes(b"great white shark\r\nK\xc3\xa4fer\r\n\r\n")
    assert data.open_split(tmp_path, "train").classes == ("great white shark", "Käfer")
    (tmp_path / "label.labels.txt").write_text(f"{CAT}\n{CAT}\n")
    assert "each once" in refusal(tmp_path)


def test_missing_and_mixed_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00001-of-00004", [b"a"])
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / 'train-00000-of-00004'}: missing, with 2 other(s) of the 4 shards")
    write_shard(tmp_path / "train-00000-of-00001", [b"a"])
    assert "shards of different sets" in refusal(tmp_path)


def damaged_set(folder: Path, damage: str) -> None:
    """Writes two shards of 300 and 200 records; damages the second."""
    write_shard(folder / "train-00000-of-00002", [b"x" * 50] * 300)
    write_shard(folder / "train-00001-of-00002", [b"x" * 50] * 200)
    path = folder / "train-00001-of-00002"
    content = bytearray(path.read_bytes())
    record = len(content) // 200
    match damage:
        case "cut in the last header":
            del content[-record + 5 :]
        case "cut in the last record":
            del content[-7:]
        case "a length":
            content[-2 * record] ^= 1
        case "cut in the middle":
            del content[100 * record : -20]
        case "no records":
            content[:] = b"\x1f\x8b" * 2000
        case "empty":
            content.clear()
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "num_rows"), [("cut in the last header", 499), ("cut in the last record", 499), ("a length", 498)]
)
def test_records_before_the_damage_are_used(
    tmp_path: Path, damage: str, num_rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_set(tmp_path, damage)
    assert data.open_split(tmp_path, "train").num_rows == num_rows
    assert f"train-00001-of-00002: damaged after record {num_rows - 300}" in caplog.text


@pytest.mark.parametrize("damage", ["no records", "empty"])
def test_what_lost_too_much_is_refused(tmp_path: Path, damage: str) -> None:
    damaged_set(tmp_path, damage)
    message = refusal(tmp_path)
    assert message.startswith(str(tmp_path / "train-00001-of-00002"))
    assert "again" in message


def test_checksums_are_those_of_tensorflow(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard", [os.urandom(i) for i in (0, 1, 255, 70000)])
    shard = records.walk(tmp_path / "shard")
    assert (shard.lengths.tolist(), shard.lost_bytes) == ([0, 1, 255, 70000], 0)
    # The test vector of RFC 3720, masked as in TFRecords.
    crc = records.masked_crc32c(np.zeros([1, 32], np.uint8))
    unmasked = (int(crc[0]) - 0xA282EAD8) % 2**32
    assert (unmasked >> 17 | unmasked << 15) % 2**32 == 0x8A9136AA


def age(folder: Path) -> None:
    """Sets modification times as if an hour had passed since the last change in `folder`."""
    then = time.time() - 3600
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns the list of shards that are walked."""
    walked: list[Path] = []
    walk = records.walk

    def walk_and_tell(path: Path) -> records.Shard:
        walked.append(path)
        return walk(path)

    monkeypatch.setattr(records, "walk", walk_and_tell)
    return walked


def test_the_index_is_kept_until_a_shard_changes(tmp_path: Path, walks: list[Path]) -> None:
    for shard in range(2):
        write_shard(tmp_path / f"train-{shard:05d}-of-00002", [b"a", b"bc"])
    age(tmp_path)
    first, second = (data.open_split(tmp_path, "train") for _ in range(2))
    assert len(walks) == 2
    for field in ("names", "name_ends", "files", "offsets", "lengths", "labels"):
        np.testing.assert_array_equal(getattr(first.index, field), getattr(second.index, field))
    assert first.classes == second.classes
    write_shard(tmp_path / "train-00001-of-00002", [b"a", b"bc", b"d"])
    assert data.open_split(tmp_path, "train").num_rows == 5
    # A file that has just changed may change again within the same timestamp, so no index is kept.
    data.open_split(tmp_path, "train")
    assert len(walks) == 6
    age(tmp_path)
    data.open_split(tmp_path, "train")
    (tmp_path / index_cache.FOLDER / "train.npz").write_bytes(b"damaged")
    assert data.open_split(tmp_path, "train").num_rows == 5
    assert len(walks) == 10
    data.open_split(tmp_path, "train")
    assert len(walks) == 10


@pytest.mark.parametrize("form", ["class folders", "one folder"])
def test_the_index_of_files_is_kept_until_a_folder_changes(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"train/{CAT}/" if form == "class folders" else f"{CAT}_"
    write(tmp_path, *[f"{folder}{i}.JPEG" for i in range(3)])
    age(tmp_path)
    # The first run caches the index, although its folder is new in the data folder.
    num_rows = data.open_split(tmp_path, "train").num_rows
    with monkeypatch.context() as patched:
        patched.setattr(data, "index_of_files", None)
        assert data.open_split(tmp_path, "train").num_rows == num_rows
    write(tmp_path, f"{folder}9.JPEG")
    assert data.open_split(tmp_path, "train").num_rows == num_rows + 1


@pytest.mark.parametrize("has_folder", [False, True])
def test_where_the_data_cannot_be_written_the_index_goes_to_the_users_cache(
    tmp_path: Path, walks: list[Path], cache_home: Path, has_folder: bool
) -> None:
    write_shard(tmp_path / "train-00000-of-00001", [b"a"])
    # Works for root, too, who ignores permissions: a file where the folder should be, or a folder for the file.
    if has_folder:
        (tmp_path / index_cache.FOLDER / "train.npz").mkdir(parents=True)
    else:
        (tmp_path / index_cache.FOLDER).write_bytes(b"")
    age(tmp_path)
    for _ in range(2):
        data.open_split(tmp_path, "train")
    assert len(walks) == 1
    assert [path.name for path in cache_home.rglob("*.npz")] == ["train.npz"]
    assert not list(tmp_path.glob(f"{index_cache.FOLDER}/.*"))
