"""From a row of a split to a decoded, cropped and resized image, whatever is in its file.

Nearly every file is a sound JPEG. Those are read and decoded in TensorFlow's own code, only as far as the crop goes.
What fails there is looked at once more in Python (`rescued`): an image of another format or a JPEG of which at least
`MIN_DECODED_SHARE` is there is decoded whole; everything else is skipped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from imagenet import crops
from imagenet.guarded import guarded, guarded_record
from imagenet.index import Split
from imagenet.skipped import Skipped

#: Share of a truncated JPEG's lines that must be there. What is missing is grey.
MIN_DECODED_SHARE = 0.5

#: The colour of missing lines, as TensorFlow fills them: of images in three colours or in grey, and of those in four.
_FILL_LEVELS = (128, 64)

#: The accurate one. The others are not faster any more.
DCT_METHOD = "INTEGER_ACCURATE"

#: A larger image is not decoded: a small file can claim a size that no memory has.
MAX_PIXELS = 2**28

#: Takes the image's shape and what was drawn for it; gives the box to crop.
ChooseBox = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_JPEG_BEGIN, _JPEG_END, _JPEG_TAIL_BYTES = b"\xff\xd8\xff", b"\xff\xd9", 4096

_NO_IMAGE = np.zeros([0, 0, 3], np.uint8)

#: The features of a record: those of the usual layout, and TFDS' names. The first counts labels from 1, 0 being
#: for none of the classes.
_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string, ""),
    "image": tf.io.FixedLenFeature([], tf.string, ""),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, 0),
    "label": tf.io.FixedLenFeature([], tf.int64, -1),
}


class Decoder:
    """Decodes rows of a split; `tf.data` calls it in many threads.

    Args:
        split: whose rows.
        image_size: height and width of the images that it gives.
        choose_box: what to crop.
        skipped: gets what cannot be used.
    """

    def __init__(self, split: Split, image_size: int, choose_box: ChooseBox, skipped: Skipped) -> None:
        self._split = split
        self._image_size = image_size
        self._choose_box = choose_box
        self._skipped = skipped
        index = split.index
        with tf.device("CPU:0"):
            self._root = tf.constant(os.fsencode(split.root) + b"/")
            # One string, of which each path is cut out: TensorFlow takes 24 bytes and more for every string.
            self._names = tf.constant(index.names.tobytes())
            self._ends = tf.constant(index.name_ends)
            self._begins = tf.constant(index.name_begins)
            self._labels = tf.constant(index.labels)
            if split.in_records:
                self._files = tf.constant(index.files)
                self._offsets = tf.constant(index.offsets)
                self._lengths = tf.constant(index.lengths)

    def __call__(self, row: tf.Tensor, sides: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The image, uint8 `[image_size, image_size, 3]`, its label, int32, and its weight, 1, or 0 if it is skipped.

        Args:
            row: int64 scalar, of the split.
            sides: for `choose_box`.
        """
        image, label = self._record(row, sides) if self._split.in_records else self._file(row, sides)
        is_sound = (tf.size(image) > 0) & (label >= 0) & (label < self._split.num_classes)

        def sound() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return crops.resized(image, self._image_size), label, tf.constant(1.0)

        def odd() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            image, label, weight = tf.numpy_function(self.rescued, [row, sides], [tf.uint8, tf.int32, tf.float32])
            shape = [self._image_size, self._image_size, 3]
            return tf.ensure_shape(image, shape), tf.ensure_shape(label, []), tf.ensure_shape(weight, [])

        return tf.cond(is_sound, sound, odd)

    def _file(self, row: tf.Tensor, sides: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The cropped image, empty if it cannot be decoded like this, and the label."""

        def read(path: tf.Tensor, sides: tf.Tensor) -> list[tf.Tensor]:
            return [self._cropped(tf.io.read_file(path), sides)]

        (image,) = guarded(self._path(row), [sides], read, [_NO_IMAGE])
        return image, self._labels[row]

    def _record(self, row: tf.Tensor, sides: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def read(record: tf.Tensor, sides: tf.Tensor) -> list[tf.Tensor]:
            content, label = parsed(record)
            return [self._cropped(content, sides), label]

        path = self._path(self._files[row])
        image, label = guarded_record(path, self._offsets[row], self._lengths[row], [sides], read, [_NO_IMAGE, 0])
        return image, label

    def _path(self, file: tf.Tensor) -> tf.Tensor:
        begin = self._begins[file]
        return self._root + tf.strings.substr(self._names, begin, self._ends[file] - begin)

    def _cropped(self, content: tf.Tensor, sides: tf.Tensor) -> tf.Tensor:
        box = self._choose_box(tf.image.extract_jpeg_shape(content), sides)
        return tf.image.decode_and_crop_jpeg(content, box, channels=3, dct_method=DCT_METHOD)

    def rescued(
        self, row: npt.NDArray[np.int64], sides: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """What `__call__` gives, for a row that is no sound JPEG: decoded if it can be, else blank and counted."""
        number = int(row)
        label = max(0, int(self._split.index.labels[number]))
        try:
            with tf.device("CPU:0"):
                content, label = read_row(self._split, number)
                image = decoded_whole(content)
                box = self._choose_box(tf.constant(image.shape), tf.constant(sides)).numpy()
                top, left, height, width = box.tolist()
                image = image[top : top + height, left : left + width]
                pixels: npt.NDArray[np.uint8] = crops.resized(image, self._image_size).numpy()
                return pixels, np.asarray(label, np.int32), np.ones([], np.float32)
        except UnusableImageError as error:
            self._skipped.add(self._split.row_name(number), str(error))
        blank = np.zeros([self._image_size, self._image_size, 3], np.uint8)
        return blank, np.asarray(label, np.int32), np.zeros([], np.float32)


class UnusableImageError(ValueError):
    """An image that is skipped; the message says why."""


def read_row(split: Split, row: int) -> tuple[bytes, int]:
    """The encoded image and its label, read in Python.

    Raises:
        UnusableImageError: the file is not there or cannot be read, or its record is damaged or has no label.
    """
    path = split.path(row)
    try:
        if not split.in_records:
            return path.read_bytes(), int(split.index.labels[row])
        offset, length = int(split.index.offsets[row]), int(split.index.lengths[row])
        with path.open("rb") as file:
            file.seek(offset)
            header, record = file.read(12), file.read(length)
    except OSError as error:
        raise UnusableImageError(f"cannot be read ({error.strerror})") from error
    if len(record) != length or struct.unpack_from("<Q", header)[0] != length:
        raise UnusableImageError("the shard has changed since it was indexed")
    try:
        content, label = (value.numpy() for value in parsed(tf.constant(record)))
    except tf.errors.OpError as error:
        raise UnusableImageError("damaged record") from error
    if not 0 <= label < split.num_classes:
        raise UnusableImageError(f"has no label from 0 to {split.num_classes - 1}: {label}")
    return content, int(label)


def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The encoded image, and its label from 0, int32; a label below 0 if there is none."""
    features = tf.io.parse_single_example(record, _FEATURES)
    plain = features["label"]
    label = tf.where(plain >= 0, plain, features["image/class/label"] - 1)
    return features["image/encoded"] + features["image"], tf.cast(label, tf.int32)


def decoded_whole(content: bytes) -> npt.NDArray[np.uint8]:
    """An image of any format that TensorFlow knows, uint8 `[height, width, 3]`; of a film, the first picture.

    Raises:
        UnusableImageError: it is empty, no image, too large, or less than `MIN_DECODED_SHARE` of it is there.
    """
    if not content:
        raise UnusableImageError("empty")
    try:
        if content.startswith(_JPEG_BEGIN):
            height, width, _ = tf.image.extract_jpeg_shape(content).numpy()
            if height * width > MAX_PIXELS:
                raise UnusableImageError(f"too large, {height} x {width} pixels")
            image = tf.io.decode_jpeg(content, channels=3, try_recover_truncated=True, dct_method=DCT_METHOD).numpy()
            share = share_of_lines(image)
            if share < MIN_DECODED_SHARE:
                raise UnusableImageError(f"truncated, {share:.0%} of its lines are there")
            return image
        image = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    except tf.errors.OpError as error:
        raise UnusableImageError("no image, or damaged") from error
    if image.ndim != 3 or not image.size:
        raise UnusableImageError("no image, or damaged")
    return image


def share_of_lines(image: npt.NDArray[np.uint8]) -> float:
    """The share of lines that are there, from 0 to 1, of a JPEG that may be truncated.

    TensorFlow's own `acceptable_fraction` is of no use: the lines that are filled in count as decoded.
    """
    level = image[-1, -1, 0]
    if level not in _FILL_LEVELS:
        return 1.0
    filled = (image == level).all(axis=(1, 2))
    num_filled = len(filled) if filled.all() else int(np.argmin(filled[::-1]))
    return 1.0 - num_filled / len(filled)


@dataclass(frozen=True)
class Jpeg:
    """An image as a sound JPEG in three colours or in grey; `is_new` if it was encoded anew for that."""

    content: bytes
    height: int
    width: int
    channels: int
    is_new: bool


def as_jpeg(file: Path) -> Jpeg:
    """A file's image; its bytes as they are where they can be, else decoded and encoded anew.

    Raises:
        UnusableImageError: as `decoded_whole`, or the file cannot be read.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UnusableImageError(f"cannot be read ({error.strerror})") from error
    # A JPEG ends with a marker, behind which some cameras leave something.
    if content.startswith(_JPEG_BEGIN) and _JPEG_END in content[-_JPEG_TAIL_BYTES:]:
        try:
            height, width, channels = tf.image.extract_jpeg_shape(content).numpy().tolist()
        except tf.errors.OpError as error:
            raise UnusableImageError("no image, or damaged") from error
        if channels in (1, 3):
            return Jpeg(content, height, width, channels, False)
    image = decoded_whole(content)
    anew = tf.io.encode_jpeg(image, quality=95, chroma_downsampling=False).numpy()
    return Jpeg(anew, image.shape[0], image.shape[1], 3, True)
