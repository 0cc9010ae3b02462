"""Decodes a row of a split to a cropped and resized image; handles corrupt and unusual files.

Nearly every file is a valid JPEG. It is read and decoded by TensorFlow's own kernels, only as far as the crop reaches.
Rows that fail there are read again in Python (`Decoder.rescued`): an image of another format, or a JPEG with at least
`MIN_DECODED_SHARE` of its lines, is decoded whole; everything else is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from imagenet import crops
from imagenet.errors import DataError
from imagenet.guarded import guarded, guarded_record, in_one_thread, record_at
from imagenet.index import Split
from imagenet.skipped import Skipped

#: Minimum fraction of a truncated JPEG's lines. Missing lines are grey.
MIN_DECODED_SHARE = 0.5

#: The colour that TensorFlow fills missing lines with: for RGB or grayscale, and for CMYK images.
_FILL_LEVELS = (128, 64)

#: The accurate method; others are no longer faster.
DCT_METHOD = "INTEGER_ACCURATE"

#: Larger images are not decoded: a small file can claim a size beyond any memory.
MAX_PIXELS = 2**28

#: Takes a number; returns a row of the split (int64), whether it is flipped, and the random numbers for its box.
Choose = Callable[[tf.Tensor], Sequence[tf.Tensor]]

#: Takes the image's shape and the random numbers drawn for it; returns the box to crop.
ChooseBox = Callable[..., tf.Tensor]

_JPEG_BEGIN, _JPEG_END, _JPEG_TAIL_BYTES = b"\xff\xd8\xff", b"\xff\xd9", 4096

_NO_IMAGE = np.zeros([1, 1, 3], np.uint8)

#: Names of the features that hold image and label, in the usual layout and in that of TFDS, and the first label: the
#: usual layout counts from 1, and 0 means none of the classes.
Layout = tuple[str, str, int]

_LAYOUTS: tuple[Layout, ...] = (("image/encoded", "image/class/label", 1), ("image", "label", 0))


class Decoder:
    """Decodes rows of a split; called by `tf.data` in many threads.

    Args:
        split: the images.
        image_size: height and width of the decoded images.
        choose: chooses the row.
        choose_box: chooses the crop.
        skipped: records the images that cannot be used.

    Raises:
        DataError: the split consists of records without images.
    """

    def __init__(self, split: Split, image_size: int, choose: Choose, choose_box: ChooseBox, skipped: Skipped) -> None:
        self._choose = choose
        self._split = split
        self._image_size = image_size
        self._choose_box = choose_box
        self._skipped = skipped
        self._layout = layout_of(split) if split.in_records else _LAYOUTS[0]
        index = split.index
        begins = index.name_begins
        with tf.device("CPU:0"):
            self._root = tf.constant(os.fsencode(split.root) + b"/")
            # One string, and paths are substrings of it: TensorFlow needs at least 24 bytes for every string.
            self._names = tf.constant(index.names.tobytes())
            self._name_ranges = tf.constant(np.stack([begins, index.name_ends - begins], 1))
            self._labels = tf.constant(index.labels)
            if split.in_records:
                self._records = tf.constant(np.stack([index.files, index.offsets], 1))

    @tf.autograph.experimental.do_not_convert
    def __call__(self, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns image (uint8 `[image_size, image_size, 3]`), label (int32) and weight: 1, or 0 if it is skipped.

        Args:
            number: int64 scalar, for `choose`.
        """

        def decoded(number: tf.Tensor) -> list[tf.Tensor]:
            row, flip, *drawn = self._choose(number)
            image, label, is_sound = (self._record if self._split.in_records else self._file)(row, drawn)
            return [crops.resized(image, self._image_size), label, is_sound, row, flip, *drawn]

        image, label, is_sound, row, flip, *drawn = in_one_thread(decoded, [number])

        def sound() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return image, label, tf.constant(1.0)

        def odd() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            image, label, weight = tf.numpy_function(self.rescued, [row, *drawn], [tf.uint8, tf.int32, tf.float32])
            shape = [self._image_size, self._image_size, 3]
            return tf.ensure_shape(image, shape), tf.ensure_shape(label, []), tf.ensure_shape(weight, [])

        image, label, weight = tf.cond(is_sound, sound, odd)
        return crops.flipped(image, flip), label, weight

    def _file(self, row: tf.Tensor, drawn: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the cropped image, the label, and True if it could be decoded."""

        def read(path: tf.Tensor, *drawn: tf.Tensor) -> list[tf.Tensor]:
            return [self._cropped(tf.io.read_file(path), drawn), tf.constant(True)]

        image, is_sound = guarded(self._path(row), drawn, read, [_NO_IMAGE, False])
        return image, tf.gather(self._labels, row), is_sound

    def _record(self, row: tf.Tensor, drawn: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        def read(record: tf.Tensor, *drawn: tf.Tensor) -> list[tf.Tensor]:
            content, label = parsed(record, self._layout)
            return [self._cropped(content, drawn), label]

        file, offset = tf.unstack(tf.gather(self._records, row))
        image, label = guarded_record(self._path(file), offset, drawn, read, [_NO_IMAGE, np.int64(-1)])
        return image, tf.cast(label, tf.int32), (label >= 0) & (label < self._split.num_classes)

    def _path(self, file: tf.Tensor) -> tf.Tensor:
        begin, length = tf.unstack(tf.gather(self._name_ranges, file))
        return self._root + tf.strings.substr(self._names, begin, length)

    def _cropped(self, content: tf.Tensor, drawn: Sequence[tf.Tensor]) -> tf.Tensor:
        box = self._choose_box(tf.image.extract_jpeg_shape(content), *drawn)
        return tf.image.decode_and_crop_jpeg(content, box, channels=3, dct_method=DCT_METHOD)

    def rescued(
        self, row: npt.NDArray[np.int64], *drawn: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Returns image, label and weight of a row that is not a valid JPEG; blank and 0 if it cannot be decoded."""
        number = int(row)
        label = max(0, int(self._split.index.labels[number]))
        try:
            with tf.device("CPU:0"):
                content, label = read_row(self._split, number, self._layout)
                image = decoded_whole(content)
                box = self._choose_box(tf.constant(image.shape), *map(tf.constant, drawn)).numpy()
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


def read_row(split: Split, row: int, layout: Layout) -> tuple[bytes, int]:
    """Returns the encoded image and its label, read in Python.

    Raises:
        UnusableImageError: the file is missing or cannot be read, or its record is damaged or has no label.
    """
    if not split.in_records:
        try:
            return split.path(row).read_bytes(), int(split.index.labels[row])
        except OSError as error:
            raise UnusableImageError(f"cannot be read ({error.strerror})") from error
    record = read_record(split, row)
    try:
        content, label = (value.numpy() for value in parsed(record, layout))
    except tf.errors.OpError as error:
        raise UnusableImageError(f"holds no {layout[0]} with {layout[1]}") from error
    if not 0 <= label < split.num_classes:
        raise UnusableImageError(
            f"expected a label from {layout[2]} on, of {split.num_classes}; it is {label + layout[2]}"
        )
    return content, int(label)


def read_record(split: Split, row: int) -> tf.Tensor:
    """Returns the content of a record, a string, after verifying its checksum.

    Raises:
        UnusableImageError: the shard cannot be read, or has changed, or the record is damaged.
    """
    offset = tf.constant(int(split.index.offsets[row]), tf.int64)
    dataset = record_at(tf.constant(os.fsencode(split.path(row))), offset)
    try:
        return tf.raw_ops.DatasetToSingleElement(dataset=dataset, output_types=[tf.string], output_shapes=[[]])[0]
    except tf.errors.OpError as error:
        raise UnusableImageError("cannot be read, is damaged, or has changed since it was indexed") from error


def layout_of(split: Split) -> Layout:
    """Returns the names of the features in a split of records, from the first record.

    Raises:
        DataError: the record has none of the known layouts, or cannot be read.
    """
    try:
        record = read_record(split, 0)
    except UnusableImageError as error:
        raise DataError(f"{split.row_name(0)}: {error}. Make or copy the shard again.") from error
    for layout in _LAYOUTS:
        try:
            parsed(record, layout)
        except tf.errors.OpError:
            continue
        return layout
    raise DataError(
        f"{split.row_name(0)}: holds no image with a label. Expected the features "
        f"{' or '.join(' and '.join(layout[:2]) for layout in _LAYOUTS)}."
    )


def parsed(record: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the encoded image, and its label from 0, int64; a negative label means none."""
    image, label, first = layout
    kinds = {image: tf.io.FixedLenFeature([], tf.string), label: tf.io.FixedLenFeature([], tf.int64)}
    features = tf.io.parse_single_example(record, kinds)
    return features[image], features[label] - first


def decoded_whole(content: bytes) -> npt.NDArray[np.uint8]:
    """Decodes any format that TensorFlow supports to uint8 `[height, width, 3]`; of an animation, the first frame.

    Raises:
        UnusableImageError: the file is empty, no image, too large, or has less than `MIN_DECODED_SHARE` of its lines.
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
                raise UnusableImageError(f"truncated, {share:.0%} of its lines are present")
            return image
        image = tf.io.decode_image(content, channels=3, expand_animations=False).numpy()
    except tf.errors.OpError as error:
        raise UnusableImageError("no image, or damaged") from error
    if image.ndim != 3 or not image.size:
        raise UnusableImageError("no image, or damaged")
    return image


def share_of_lines(image: npt.NDArray[np.uint8]) -> float:
    """Returns the fraction of lines present, from 0 to 1, in a JPEG that may be truncated.

    TensorFlow's own `acceptable_fraction` does not help: it counts filled lines as decoded.
    """
    level = image[-1, -1, 0]
    if level not in _FILL_LEVELS:
        return 1.0
    filled = (image == level).all(axis=(1, 2))
    num_filled = len(filled) if filled.all() else int(np.argmin(filled[::-1]))
    return 1.0 - num_filled / len(filled)


@dataclass(frozen=True)
class Jpeg:
    """An image as a valid JPEG, RGB or grayscale; `is_new` if it was encoded again."""

    content: bytes
    height: int
    width: int
    channels: int
    is_new: bool


def as_jpeg(file: Path) -> Jpeg:
    """Reads a file's image: a valid JPEG with its bytes unchanged, anything else decoded and encoded again.

    Raises:
        UnusableImageError: the file cannot be read or decoded (see `decoded_whole`).
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UnusableImageError(f"cannot be read ({error.strerror})") from error
    # A JPEG ends with a marker; some cameras append data.
    if content.startswith(_JPEG_BEGIN) and _JPEG_END in content[-_JPEG_TAIL_BYTES:]:
        try:
            height, width, channels = tf.image.extract_jpeg_shape(content).numpy().tolist()
        except tf.errors.OpError as error:
            raise UnusableImageError("no image, or damaged") from error
        if channels in (1, 3):
            return Jpeg(content, height, width, channels, False)
    image = decoded_whole(content)
    encoded = tf.io.encode_jpeg(image, quality=95, chroma_downsampling=False).numpy()
    return Jpeg(encoded, image.shape[0], image.shape[1], 3, True)
