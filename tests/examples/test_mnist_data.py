"""Every source of digits is read correctly, and every kind of bad file is refused by name and reason."""

import gzip
import logging
import struct
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from mnist import data, idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

UInt8Array = npt.NDArray[np.uint8]


def idx_bytes(array: UInt8Array) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def fake_images(count: int) -> UInt8Array:
    return np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)


def fake_labels(count: int) -> UInt8Array:
    return np.arange(count, dtype=np.uint8) % 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with twelve training and five test digits in four plain files."""
    for images, labels, count in ((IMAGES, LABELS, 12), (TEST_IMAGES, TEST_LABELS, 5)):
        (tmp_path / images).write_bytes(idx_bytes(fake_images(count)))
        (tmp_path / labels).write_bytes(idx_bytes(fake_labels(count)))
    return tmp_path


@pytest.fixture
def keras_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of Keras' cached MNIST; the file does not exist yet."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    path = tmp_path / "keras" / "datasets" / "mnist.npz"
    path.parent.mkdir(parents=True)
    return path


def refusal(folder: Path, file: str) -> str:
    """Returns the message that refuses the folder; asserts one line that starts with the file, and a whole sentence."""
    with pytest.raises(idx.DataError) as caught:
        data.load(str(folder))
    message = str(caught.value)
    assert message.startswith(str(folder / file))
    assert "\n" not in message
    assert message.endswith(".")
    return message


def check_is_whole(digits: data.Digits) -> None:
    np.testing.assert_array_equal(digits.train.images, fake_images(12))
    np.testing.assert_array_equal(digits.train.labels, fake_labels(12))
    np.testing.assert_array_equal(digits.test.images, fake_images(5))
    np.testing.assert_array_equal(digits.test.labels, fake_labels(5))


def test_plain_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check_is_whole(data.load(str(folder)))
    assert [record.getMessage() for record in caplog.records] == [
        f"data: MNIST files in {folder}; 12 training images, 5 test images"
    ]


def test_gzip_files(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    check_is_whole(data.load(str(folder)))


def test_dotted_names_and_unpacked_files_still_called_gz(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx") + ".gz"))
    check_is_whole(data.load(str(folder)))


def test_no_such_folder(tmp_path: Path) -> None:
    assert "not a directory" in refusal(tmp_path / "nowhere", "")


def test_empty_folder(tmp_path: Path) -> None:
    assert "missing, and so are train-images-idx3-ubyte.gz, train-images.idx3-ubyte" in refusal(tmp_path, IMAGES)


@pytest.mark.parametrize("file", [IMAGES, LABELS, TEST_IMAGES, TEST_LABELS])
def test_one_of_the_four_missing(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert "missing" in refusal(folder, file)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    (folder / LABELS).unlink()
    (folder / LABELS).mkdir()
    assert "cannot be read (Is a directory)" in refusal(folder, LABELS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated, expected a header of 16 bytes, received a file of 0"),
        (b"\0\0\x08", "truncated, expected a header of 16 bytes, received a file of 3"),
        (struct.pack(">II", 0x0803, 12), "truncated, expected a header of 16 bytes, received a file of 8"),
        (idx_bytes(fake_images(12))[:-1], "truncated, expected 9408 bytes for the shape (12, 28, 28)"),
        (idx_bytes(fake_images(12)) + b"\0", "too long, expected 9408 bytes"),
        (struct.pack(">4I", 0x0803, 2**31, 2**31, 4), "truncated, expected 18446744073709551616 bytes"),
        (idx_bytes(fake_labels(12)), "wrong magic number, expected 2051"),
        (struct.pack(">4I", 0x0D03, 1, 28, 28) + bytes(784 * 4), "received 3331"),
        (b"<!DOCTYPE html><title>404</title>", "wrong magic number"),
        (gzip.compress(idx_bytes(fake_images(12)), mtime=0)[:-20], "damaged or truncated gzip"),
        (gzip.compress(idx_bytes(fake_images(12)), mtime=0)[:5], "damaged or truncated gzip"),
        (b"\x1f\x8b\x08" + bytes(100), "damaged or truncated gzip"),
        (b"\x1f\x8b\xff not gzip at all", "damaged or truncated gzip"),
        (gzip.compress(idx_bytes(fake_images(12))[:-1], mtime=0), "truncated, expected 9408 bytes"),
        (idx_bytes(fake_images(12)[:, :, 1:]), "wrong image size, expected (count, 28, 28)"),
        (idx_bytes(fake_images(12)[:0]), "holds no images"),
    ],
)
def test_damaged_images(folder: Path, content: bytes, reason: str) -> None:
    (folder / IMAGES).write_bytes(content)
    if reason == "holds no images":
        (folder / LABELS).write_bytes(idx_bytes(fake_labels(0)))
    assert reason in refusal(folder, IMAGES)


def test_a_flipped_bit_in_gzip(folder: Path) -> None:
    packed = bytearray(gzip.compress(idx_bytes(fake_images(12)), mtime=0))
    packed[-6] ^= 1  # In the checksum.
    (folder / IMAGES).write_bytes(packed)
    assert "damaged or truncated gzip" in refusal(folder, IMAGES)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (fake_labels(11), "one uint8 label for each of the 12 images"),
        (fake_labels(13), "received shape (13,)"),
        (np.append(fake_labels(11), np.uint8(10)), "labels must be from 0 to 9, received 10"),
    ],
)
def test_labels_that_do_not_fit(folder: Path, labels: UInt8Array, reason: str) -> None:
    (folder / LABELS).write_bytes(idx_bytes(labels))
    message = refusal(folder, LABELS)
    assert reason in message
    assert "put the originals in their place" in message


def test_keras_cache_comes_before_scikit_learn(keras_cache: Path) -> None:
    np.savez(
        keras_cache,
        x_train=fake_images(12),
        y_train=fake_labels(12),
        x_test=fake_images(5),
        y_test=fake_labels(5),
    )
    digits = data.load()
    check_is_whole(digits)
    assert str(keras_cache) in digits.source


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 half an archive"])
def test_damaged_keras_cache(keras_cache: Path, content: bytes) -> None:
    keras_cache.write_bytes(content)
    with pytest.raises(idx.DataError, match=r"mnist\.npz: damaged .* Delete it"):
        data.load()


def test_keras_cache_without_an_array(keras_cache: Path) -> None:
    np.savez(keras_cache, x_train=fake_images(12))
    with pytest.raises(idx.DataError, match="y_train"):
        data.load()


def test_keras_cache_of_floats(keras_cache: Path) -> None:
    images = fake_images(5).astype(np.float32)
    np.savez(keras_cache, x_train=images, y_train=fake_labels(5), x_test=images, y_test=fake_labels(5))
    with pytest.raises(idx.DataError, match=r"mnist\.npz \(x_train\): .* float32"):
        data.load()


def test_scikit_learn_digits(keras_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        digits = data.load()
    assert not keras_cache.exists()
    assert [record.getMessage() for record in caplog.records] == [
        "data: the digits inside scikit-learn, enlarged from 8x8 to 28x28 (not MNIST); "
        "1442 training images, 355 test images"
    ]
    for split in (digits.train, digits.test):
        assert split.images.shape == (len(split.labels), 28, 28)
        assert (split.images.min(), split.images.max()) == (0, 255)
        share = np.bincount(split.labels, minlength=10) / len(split.labels)
        assert share.min() > 0.09
        assert share.max() < 0.11
    # The same the second time: nothing is random.
    np.testing.assert_array_equal(data.load().test.images, digits.test.images)


def test_no_digits_anywhere(keras_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(idx.DataError, match="pip install scikit-learn"):
        data.load()
    assert not keras_cache.exists()


def test_enlarging_keeps_corners_flats_and_slopes() -> None:
    corners = np.zeros((1, 8, 8))
    corners[0, 0, 7] = 1.0
    large = data.enlarge(corners)
    assert large.shape == (1, 28, 28)
    assert large[0, 0, 27] == 255
    assert large[0, 0, 0] == large[0, 27, 27] == large[0, 27, 0] == 0
    assert set(np.unique(data.enlarge(np.full((2, 8, 8), 0.5)))) == {128}
    slope = data.enlarge(np.broadcast_to(np.arange(8) / 7, (1, 8, 8)))[0, 0].astype(int)
    assert (np.diff(slope) >= 0).all()
    assert np.diff(slope[2:26]).min() >= 10
    assert np.diff(slope[2:26]).max() <= 11
