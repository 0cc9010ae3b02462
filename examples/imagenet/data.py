"""Finds the images: class folders, TFRecord shards, or a flat folder of named files. No TensorFlow, no network.

Every problem with the data folder ends in a `DataError` that names the folder, the reason and the fix.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagenet.errors import DataError
from imagenet.index import Index, Split, index_of_files, is_image_name
from imagenet.index_cache import cached
from imagenet.records import index_of_shards

__all__ = ["DataError", "Split", "open_split"]

#: In a flat folder with both splits, every n-th image of each class, by name, is for validation.
HOLD_OUT_EVERY = 25

#: The number of classes of records without a class list: that of ImageNet.
DEFAULT_NUM_CLASSES = 1000

#: Files with class names next to shards, one per line: written by `to_tfrecords.py`, and by TFDS.
CLASS_LISTS = ("classes.txt", "label.labels.txt")

_FOLDERS = {"train": ("train",), "val": ("val", "validation")}
_SHARD = re.compile(
    r"(?:[^.]+-)?(?P<split>train|validation|val)(?:\.tfrecords?)?-(?P<number>\d{5})-of-(?P<count>\d{5})"
)
_NAMED = re.compile(r"(?P<wnid>n\d{8})_.+")
_OFFICIAL = re.compile(r"ILSVRC\d*_(val|test)_\d+\.JPEG", re.IGNORECASE)

_log = logging.getLogger(__name__)


def open_split(data_dir: str | os.PathLike[str], name: str) -> Split:
    """Opens the images for training ("train") or validation ("val"); one log line reports what was found.

    It takes the first of these forms that exists:

    1. TFRecord shards, `train-00000-of-01024` and `validation-00000-of-00128`, in the folder itself or in its
       subfolders `train` and `validation` (or `val`); names as TFDS writes them are found, too.
    2. Class folders, `train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`. Labels are positions in the sorted list of the
       folders of `train`.
    3. Files called `<wnid>_*.JPEG`, flat in `train` and `val`, or all in the folder itself: then every 25th of each
       class, by name, is for validation.

    The index of the images is cached in `.imagenet_index` in the data folder, or else in the user's cache folder.

    Raises:
        DataError: no images in any of these forms, missing or damaged shards, or classes that do not agree.
    """
    if name not in _FOLDERS:
        raise DataError(f"Expected the split train or val, received {name!r}.")
    root = Path(data_dir)
    start = time.monotonic()
    try:
        if not root.is_dir():
            raise DataError(f"{root}: not a directory. Give --data_dir the folder that holds the images.")
        split = _find(root, name)
    except OSError as error:
        raise DataError(
            f"{error.filename or root}: cannot be read ({error.strerror}). Check its owner and rights."
        ) from error
    _log.info(
        "data: %s: %s in %s, %d images of %d classes (%.1f s)",
        name,
        split.form,
        root,
        split.num_rows,
        split.num_classes,
        time.monotonic() - start,
    )
    return split


def _find(root: Path, name: str) -> Split:
    shards = _shards(root, name)
    if shards:
        return _records(root, name, shards)
    for folder in (root / part for part in _FOLDERS[name]):
        if folder.is_dir():
            return _files(root, name, folder)
    if any(is_image_name(entry.name) and entry.is_file() for entry in list(os.scandir(root))):
        return _held_out(root, name)
    expected = " or ".join(f"{part}/<wnid>/*.JPEG" for part in _FOLDERS[name])
    raise DataError(
        f"{root}: holds no images for {name}: neither shards like {_FOLDERS[name][-1]}-00000-of-01024 nor {expected} "
        f"nor files <wnid>_*.JPEG. Name the folder that holds them."
    )


def _shards(root: Path, name: str) -> list[str]:
    """Returns the paths of the split's shards relative to `root`, in order; empty if there are none.

    Raises:
        DataError: some are missing.
    """
    for folder in (root, *(root / part for part in _FOLDERS[name])):
        found: dict[int, dict[int, str]] = {}
        for entry in os.scandir(folder) if folder.is_dir() else ():
            match = _SHARD.fullmatch(entry.name)
            if match and match["split"] in _FOLDERS[name]:
                found.setdefault(int(match["count"]), {})[int(match["number"])] = entry.name
        if len(found) > 1:
            raise DataError(f"{folder}: shards of different sets, of {sorted(found)} shards. Keep one set in a folder.")
        for count, names in found.items():
            missing = sorted(set(range(count)) - set(names))
            if missing:
                example = next(iter(names.values())).replace(f"{next(iter(names)):05d}-of", f"{missing[0]:05d}-of")
                raise DataError(
                    f"{folder / example}: missing, with {len(missing) - 1} other(s) of the {count} shards. "
                    f"Copy or make them."
                )
            return [os.path.relpath(folder / names[number], root) for number in range(count)]
    return []


def _records(root: Path, name: str, shards: Sequence[str]) -> Split:
    lists = [folder / file for folder in dict.fromkeys([root, (root / shards[0]).parent]) for file in CLASS_LISTS]
    known = next((path for path in lists if path.is_file()), None)
    if known is None:
        classes = [str(label) for label in range(DEFAULT_NUM_CLASSES)]
    else:
        # Decoded like folder names: they may contain spaces, and bytes that are not UTF-8.
        classes = [os.fsdecode(line) for line in known.read_bytes().splitlines() if line]
        if not classes or len(set(classes)) != len(classes):
            raise DataError(
                f"{known}: expected the names of the classes, each once, in lines. Write them, or delete it."
            )

    def make() -> Index:
        return index_of_shards(root, shards, classes)

    index = cached(root, name, [*shards, classes], [root / shard for shard in shards], make)
    return Split(name, root, f"{len(shards)} TFRecord shards", True, index)


def _files(root: Path, name: str, folder: Path) -> Split:
    """Returns the index of class folders, or named files, in the split's own folder."""
    subfolders = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    # The classes are those of the training images, whichever split is asked for.
    classes = None if name == "train" or not (root / "train").is_dir() else _find(root, "train").classes

    def make() -> Index:
        by_class = _in_folders(folder, subfolders) if subfolders else _by_wnid(folder)
        return _index(root, folder, by_class, classes)

    sources = [folder, *(folder / subfolder for subfolder in subfolders)]
    index = cached(root, name, ["files", subfolders, classes], sources, make)
    return Split(name, root, "class folders" if subfolders else "named files", False, index)


def _held_out(root: Path, name: str) -> Split:
    """Returns the index of named files of both splits in the data folder itself."""

    def make() -> Index:
        everything = _by_wnid(root)
        chosen = {
            wnid: [
                file for i, file in enumerate(files) if (i % HOLD_OUT_EVERY == 0 and len(files) > 1) == (name == "val")
            ]
            for wnid, files in everything.items()
        }
        return _index(root, root, chosen, tuple(everything))

    index = cached(root, name, ["held out", HOLD_OUT_EVERY], [root], make)
    return Split(name, root, f"named files, every {HOLD_OUT_EVERY}th for validation", False, index)


def _in_folders(folder: Path, subfolders: Sequence[str]) -> dict[str, list[str]]:
    """Returns the paths relative to `folder` of the images in each subfolder that has any."""
    found, empty = {}, []
    next_line = time.monotonic() + 5.0
    for number, subfolder in enumerate(subfolders):
        files = sorted(entry.name for entry in os.scandir(folder / subfolder) if is_image_name(entry.name))
        if files:
            found[subfolder] = [f"{subfolder}/{file}" for file in files]
        else:
            empty.append(subfolder)
        if time.monotonic() >= next_line:
            next_line += 5.0
            _log.info("looking for images in %s: %d of %d folders", folder, number + 1, len(subfolders))
    if empty:
        _log.warning("%s: %d folder(s) without images are no classes: %s", folder, len(empty), ", ".join(empty[:5]))
    return found


def _by_wnid(folder: Path) -> dict[str, list[str]]:
    """Returns the names of the images in `folder` by their wnid, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(_image_names(folder)):
        match = _NAMED.fullmatch(file)
        if match is None and _OFFICIAL.fullmatch(file):
            raise DataError(
                f"{folder}: holds the official images without their labels ({file}). Sort them into folders by class, "
                f"as the development kit's ground truth says: {folder.name}/<wnid>/{file}."
            )
        if match is None:
            raise DataError(
                f"{folder / file}: its class is not known. Call it <wnid>_{file}, or put it into a folder <wnid>."
            )
        found.setdefault(match["wnid"], []).append(file)
    return dict(sorted(found.items()))


def _image_names(folder: Path) -> Iterator[str]:
    return (entry.name for entry in os.scandir(folder) if is_image_name(entry.name))


def _index(root: Path, folder: Path, by_class: dict[str, list[str]], classes: Sequence[str] | None) -> Index:
    """Returns the index of `by_class`, whose paths are relative to `folder`; labels are positions in `classes`."""
    if not any(by_class.values()):
        raise DataError(f"{folder}: holds no images (*.JPEG, *.jpg, *.png). Name the folder that holds them.")
    classes = sorted(by_class) if classes is None else classes
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    unknown = [wnid for wnid in by_class if wnid not in label_of]
    if unknown:
        raise DataError(
            f"{folder}: {len(unknown)} class(es) without training images, first {unknown[0]!r}. Both splits must have "
            f"the same classes: check that train and {folder.name} belong together."
        )
    prefix = os.path.relpath(folder, root)
    names = [file if prefix == "." else f"{prefix}/{file}" for files in by_class.values() for file in files]
    labels = [label_of[wnid] for wnid, files in by_class.items() for _ in files]
    return index_of_files(names, labels, classes)
