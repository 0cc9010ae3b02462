"""The index of a split's images: file, offset, length and label of each row. Pure numpy, no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")

#: Length of a row that is a file of its own.
WHOLE_FILE = -1
#: Label of a row whose label is in its record.
IN_RECORD = -1


@dataclass(frozen=True, eq=False)
class Index:
    """The rows of one split, as arrays.

    Attributes:
        names: paths of the files relative to the data folder, one after the other, as bytes. It is one array and not
            a list of strings: for a million paths it takes 40 MB and no time to load.
        name_ends: int64 per file, where its path ends in `names`.
        files: int32 per row, the number of its file.
        offsets: int64 per row, where its record begins; 0 where it is a file of its own.
        lengths: int64 per row, bytes of the record's content; `WHOLE_FILE` where it is a file of its own.
        labels: int32 per row, from 0; `IN_RECORD` where the label is only in the record.
        classes: names of the classes, in the order of the labels.
    """

    names: npt.NDArray[np.uint8]
    name_ends: npt.NDArray[np.int64]
    files: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]

    @property
    def name_begins(self) -> npt.NDArray[np.int64]:
        """The start of each file's path in `names`, int64."""
        return np.concatenate([np.zeros(min(1, len(self.name_ends)), np.int64), self.name_ends[:-1]])

    def file_name(self, file: int) -> str:
        """Returns the path of a file relative to the data folder."""
        begin = int(self.name_ends[file - 1]) if file else 0
        return os.fsdecode(self.names[begin : int(self.name_ends[file])].tobytes())


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one split, training or validation.

    Attributes:
        name: "train" or "val".
        root: the data folder.
        form: the layout of the images, in words.
        in_records: whether the rows are records of TFRecord shards, not files of their own.
        index: file, offset and label of each row.
    """

    name: str
    root: Path
    form: str
    in_records: bool
    index: Index

    @property
    def num_rows(self) -> int:
        """The number of images."""
        return len(self.index.labels)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self.index.classes

    @property
    def num_classes(self) -> int:
        """The number of classes; every label is less."""
        return len(self.index.classes)

    def path(self, row: int) -> Path:
        """Returns the file that contains a row."""
        return self.root / self.index.file_name(int(self.index.files[row]))

    def row_name(self, row: int) -> str:
        """Returns a row's name for messages: the file, and the position in it if the file holds several."""
        name = str(self.path(row))
        return f"{name}, record at byte {self.index.offsets[row]}" if self.in_records else name


def packed_names(names: Iterable[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns `names` and `name_ends` of an `Index`."""
    encoded = [os.fsencode(name) for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def index_of_files(names: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> Index:
    """Returns the index of images that are one file each."""
    packed, ends = packed_names(names)
    count = len(names)
    return Index(
        packed,
        ends,
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int64),
        np.full(count, WHOLE_FILE, np.int64),
        np.asarray(labels, np.int32),
        tuple(classes),
    )


def is_image_name(name: str) -> bool:
    """Returns True if a file name has the extension of an image and is not hidden."""
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)
