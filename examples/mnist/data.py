"""Handwritten digits as arrays: MNIST in IDX files, Keras' cached MNIST, or the digits inside scikit-learn.

Pure numpy and no network: nothing is downloaded. All problems are reported as a `DataError` with the file, the reason
and the remedy.
"""

import logging
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mnist.idx import DataError, find_idx, read_idx

IMAGE_SIZE = 28
NUM_CLASSES = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Images of shape (count, 28, 28) with pixels from 0 to 255, and labels of shape (count,) from 0 to 9."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Digits:
    """The two splits, and a description of their source."""

    train: Split
    test: Split
    source: str


def load(data_dir: str | None = None) -> Digits:
    """Returns the digits in `data_dir`, or the best ones on this machine; one log line names the source.

    Args:
        data_dir: Folder with the four MNIST files in IDX format. None takes Keras' cached MNIST if it has
            been downloaded before, else the 1,797 digits that scikit-learn ships.

    Raises:
        DataError: A file is missing, unreadable, damaged, or does not fit the others.
    """
    if data_dir is not None:
        digits = load_idx_files(Path(data_dir))
    elif (cache := keras_cache_file()).is_file():
        digits = load_keras_cache(cache)
    else:
        digits = load_scikit_learn()
    _log.info(
        "data: %s; %d training images, %d test images",
        digits.source,
        len(digits.train.labels),
        len(digits.test.labels),
    )
    return digits


def load_idx_files(folder: Path) -> Digits:
    """Returns MNIST from `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and their `t10k` pair; also `.gz`."""
    if not folder.is_dir():
        raise DataError(f"{folder}: not a directory. Give --data_dir the folder that holds the four MNIST files.")
    splits = []
    for part in ("train", "t10k"):
        images_path = find_idx(folder, f"{part}-images", num_dims=3)
        labels_path = find_idx(folder, f"{part}-labels", num_dims=1)
        images, labels = read_idx(images_path, num_dims=3), read_idx(labels_path, num_dims=1)
        splits.append(_checked(images, labels, str(images_path), str(labels_path)))
    train, test = splits
    return Digits(train, test, source=f"MNIST files in {folder}")


def keras_cache_file() -> Path:
    """Returns the path of the download of `keras.datasets.mnist.load_data()`; nothing is downloaded here."""
    home = os.environ.get("KERAS_HOME")
    return (Path(home) if home else Path.home() / ".keras") / "datasets" / "mnist.npz"


def load_keras_cache(path: Path) -> Digits:
    """Returns MNIST from Keras' `.npz` file: arrays x_train, y_train, x_test and y_test."""
    try:
        # numpy does not close a damaged file that it opened itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {f"{kind}_{part}": archive[f"{kind}_{part}"] for part in ("train", "test") for kind in "xy"}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: damaged ({error}). Delete it, so that Keras downloads it again, or give --data_dir."
        ) from error
    train, test = (
        _checked(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path} (x_{part})", f"{path} (y_{part})")
        for part in ("train", "test")
    )
    return Digits(train, test, source=f"MNIST as Keras keeps it in {path}")


def load_scikit_learn() -> Digits:
    """Returns the 1,797 real digits of 8x8 pixels in scikit-learn, enlarged.

    Every fifth image of each class is for testing: a split without random numbers is the same with every version of
    numpy.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "no digits found: no --data_dir, no MNIST in Keras' cache, and scikit-learn is not installed. "
            "Run `pip install scikit-learn`, which contains digits, or give --data_dir."
        ) from error
    bunch = load_digits()
    labels = np.asarray(bunch.target, np.uint8)
    images = enlarge(np.asarray(bunch.images, np.float64) / 16.0)
    rank_in_class = np.zeros(len(labels), np.int64)
    for label in range(NUM_CLASSES):
        members = labels == label
        rank_in_class[members] = np.arange(np.count_nonzero(members))
    is_test = rank_in_class % 5 == 4
    return Digits(
        Split(images[~is_test], labels[~is_test]),
        Split(images[is_test], labels[is_test]),
        source="the digits inside scikit-learn, enlarged from 8x8 to 28x28 (not MNIST)",
    )


def enlarge(images: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Enlarges square images with values from 0 to 1 bilinearly to 28x28 pixels from 0 to 255."""
    size = images.shape[1]
    # Pixel centres are half a pixel inside the image; values are constant beyond the outermost centres.
    centres = np.clip((np.arange(IMAGE_SIZE) + 0.5) * size / IMAGE_SIZE - 0.5, 0, size - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(size)[None, :]))
    return np.rint(255.0 * (weights @ images @ weights.T)).astype(np.uint8)


def _checked(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], images_name: str, labels_name: str) -> Split:
    """Returns the two arrays as a `Split`.

    Raises:
        DataError: the arrays are not MNIST images and labels.
    """
    fix = "The files do not belong together or are not MNIST: put the originals in their place."
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE):
        raise DataError(
            f"{images_name}: wrong image size, expected (count, {IMAGE_SIZE}, {IMAGE_SIZE}) of uint8, "
            f"received {images.shape} of {images.dtype}. {fix}"
        )
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{labels_name}: expected one uint8 label for each of the {len(images)} images in {images_name}, "
            f"received shape {labels.shape} of {labels.dtype}. {fix}"
        )
    if not len(images):
        raise DataError(f"{images_name}: holds no images. {fix}")
    if labels.max() >= NUM_CLASSES:
        raise DataError(f"{labels_name}: labels must be from 0 to {NUM_CLASSES - 1}, received {labels.max()}. {fix}")
    return Split(images, labels)
