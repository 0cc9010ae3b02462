"""Converts image files to TFRecord shards, in several processes in parallel.

A shard is written under a temporary name and renamed when it is complete, so that a second run makes only the missing
shards.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from common.files import write_whole

from imagenet.errors import DataError
from imagenet.index import Split
from imagenet.records import walk

#: The names of the splits in the layout.
SPLIT_NAMES = {"train": "train", "val": "validation"}

_REQUEST = "conversion-{split}.json"
_CLASSES = "classes.txt"
_POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Shard:
    """The contents of one shard; picklable.

    Attributes:
        path: path of the shard.
        files: paths of the images.
        labels: labels of the images, from 0.
        classes: names of the classes.
        texts: descriptions in words, for the classes that have one.
    """

    path: Path
    files: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """The outcome of writing one or several shards.

    Attributes:
        num_images: number of images in them.
        num_encoded: number of these that were re-encoded, because they were not RGB or greyscale JPEGs, or truncated.
        skipped: paths of images that could not be used, each with the reason.
    """

    num_images: int
    num_encoded: int
    skipped: tuple[tuple[str, str], ...]


def plan(split: Split, output_dir: Path, num_shards: int, seed: int) -> list[Shard]:
    """Assigns the images of a split to shards; a function of the images and the seed.

    Raises:
        DataError: the split is in TFRecords already, or has fewer images than `num_shards`.
    """
    if split.in_records:
        raise DataError(f"{split.root}: {split.name} is in TFRecord shards already. Name a folder of image files.")
    if not 1 <= num_shards <= split.num_rows:
        raise DataError(f"Expected 1 to {split.num_rows} shards, the images of {split.name}; received {num_shards}.")
    order = _shuffled(split, seed)
    texts = _texts(split.root)
    shards = []
    for number in range(num_shards):
        rows = order[number * len(order) // num_shards : (number + 1) * len(order) // num_shards].tolist()
        shards.append(
            Shard(
                output_dir / f"{SPLIT_NAMES[split.name]}-{number:05d}-of-{num_shards:05d}",
                tuple(str(split.path(row)) for row in rows),
                tuple(int(split.index.labels[row]) for row in rows),
                split.classes,
                texts,
            )
        )
    return shards


def claim(output_dir: Path, splits: Sequence[Split], num_shards: Mapping[str, int], seed: int) -> None:
    """Makes the folder, writes the requests and the class list, and removes temporary files of killed runs.

    Each split has its own request file, so that splits can be converted one by one, also on several machines.

    Raises:
        DataError: the folder belongs to another request, or cannot be written.
    """
    requests = {
        output_dir / _REQUEST.format(split=split.name): {
            "seed": seed,
            "num_shards": num_shards[split.name],
            "num_images": split.num_rows,
            # A digest of names, positions and labels: another set of the same size is another request.
            "images": hashlib.sha256(split.index.names.tobytes() + split.index.labels.tobytes()).hexdigest(),
        }
        for split in splits
    }
    contents = {file: json.dumps(request, indent=1).encode() for file, request in requests.items()}
    # The same encoding as the names of the class folders.
    contents[output_dir / _CLASSES] = b"".join(os.fsencode(name) + b"\n" for name in splits[0].classes)
    if len(contents[output_dir / _CLASSES].splitlines()) != splits[0].num_classes:
        raise DataError(
            f"{splits[0].root}: a folder's name has a line break: class names are kept in lines. Rename it."
        )
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, prefix in SPLIT_NAMES.items():
            # In this order: a process that writes shards has written its request first.
            if any(output_dir.glob(f"{prefix}-*-of-*")) and not (output_dir / _REQUEST.format(split=name)).exists():
                raise DataError(f"{output_dir}: holds shards that this program has not made. Name another folder.")
        for file, content in contents.items():
            if file.exists() and file.read_bytes() != content:
                raise DataError(
                    f"{output_dir}: holds shards of another request, or of images or classes that have changed since "
                    f"({file}). Name another folder, or delete this one."
                )
        for file, content in contents.items():
            write_whole(file, content)
        _remove_left_overs(output_dir)
    except OSError as error:
        raise DataError(f"{output_dir}: cannot be written ({error.strerror}). Name another folder.") from error


def _remove_left_overs(output_dir: Path) -> None:
    """Removes incomplete shards whose writers have ended; shards that are being written are locked."""
    for prefix in SPLIT_NAMES.values():
        for left_over in output_dir.glob(f".{prefix}-*-of-*"):
            # If it cannot be locked (removed by another process, in use, no locks on this file system), leave it.
            with contextlib.suppress(OSError), left_over.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left_over.unlink()


def finished(shard: Shard) -> int | None:
    """Returns the number of images in a shard finished by an earlier run; None if there is none.

    Raises:
        DataError: the shard is damaged.
    """
    if not shard.path.exists():
        return None
    found = walk(shard.path)
    if found.lost_bytes or len(found.offsets) > len(shard.files):
        raise DataError(f"{shard.path}: damaged, or not of this set. Delete it, so that it is made again.")
    return len(found.offsets)


def convert(shards: Sequence[Shard], workers: int, progress: Callable[[int], None]) -> Outcome:
    """Writes the shards, in `workers` processes.

    Args:
        shards: the shards to make.
        workers: number of processes.
        progress: called about three times a second with the number of images done, skipped ones included.

    Raises:
        DataError: a shard could not be written, or a process died.
    """
    # Not fork: TensorFlow does not survive it.
    context = multiprocessing.get_context("spawn")
    outcomes: list[Outcome] = []
    with (
        tempfile.NamedTemporaryFile() as counts_file,
        ProcessPoolExecutor(workers, context, _end_with_parent) as pool,
    ):
        # A counter for each shard, in shared memory, without locks.
        counts = _counts(counts_file.name, len(shards))
        waiting: set[Future[Outcome]] = {
            pool.submit(_write_shard, shard, counts_file.name, number) for number, shard in enumerate(shards)
        }
        try:
            while waiting:
                done, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                outcomes += [future.result() for future in done]
                progress(int(counts.sum()))
        except OSError as error:
            raise DataError(
                f"{error.filename or 'a file'}: {error.strerror}. Make room or rights and run this again: "
                f"finished shards are kept."
            ) from error
        except BrokenProcessPool as error:
            raise DataError(
                "A process that writes shards was killed, perhaps because memory ran out. Run this again, with fewer "
                "--processes: finished shards are kept."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
    return Outcome(
        sum(outcome.num_images for outcome in outcomes),
        sum(outcome.num_encoded for outcome in outcomes),
        tuple(sorted(line for outcome in outcomes for line in outcome.skipped)),
    )


def _counts(file: str, count: int) -> npt.NDArray[np.int64]:
    """Returns the counters of finished images, one per shard, mapped from a file."""
    return np.memmap(file, np.int64, "r+", shape=(count,))


def _end_with_parent() -> None:
    """Initialises a process of the pool, which ends when its parent does."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        # The main process has ended, and nothing else would end this one.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _write_shard(shard: Shard, counts_file: str, number: int) -> Outcome:
    """Writes one shard, in a process of the pool, with its progress in counter `number`."""
    import tensorflow as tf

    from imagenet.decoding import UnusableImageError

    # The name has process id and time, so that two programs on two machines do not write to the same file.
    temporary = shard.path.with_name(f".{shard.path.name}.{os.getpid()}.{time.monotonic_ns()}")
    num_encoded, skipped = 0, []
    counts = _counts(counts_file, number + 1)
    try:
        with temporary.open("wb") as opened:
            # The lock protects the file from removal as long as this process lives.
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX)
            with tf.io.TFRecordWriter(os.fsencode(temporary)) as writer:
                for file, label in zip(shard.files, shard.labels, strict=True):
                    try:
                        example, is_encoded = _example(Path(file), label, shard)
                        writer.write(example)
                        num_encoded += is_encoded
                    except UnusableImageError as error:
                        skipped.append((file, str(error)))
                    counts[number] += 1
            os.fsync(opened.fileno())
            temporary.rename(shard.path)
    except tf.errors.OpError as error:
        # TensorFlow's errors cannot be pickled.
        raise OSError(0, error.message.splitlines()[0], str(temporary)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return Outcome(len(shard.files) - len(skipped), num_encoded, tuple(skipped))


def _example(file: Path, label: int, shard: Shard) -> tuple[bytes, bool]:
    """Returns the record of an image, and True if it was encoded again."""
    import tensorflow as tf

    from imagenet.decoding import as_jpeg

    wnid = shard.classes[label]
    jpeg = as_jpeg(file)
    values: dict[str, bytes | int] = {
        "image/encoded": jpeg.content,
        "image/height": jpeg.height,
        "image/width": jpeg.width,
        "image/colorspace": b"RGB" if jpeg.channels == 3 else b"Grayscale",
        "image/channels": jpeg.channels,
        "image/format": b"JPEG",
        "image/filename": os.fsencode(file.name),
        # In this layout, label 0 means none of the classes.
        "image/class/label": label + 1,
        "image/class/synset": os.fsencode(wnid),
    }
    if wnid in shard.texts:
        values["image/class/text"] = os.fsencode(shard.texts[wnid])
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        if isinstance(value, int)
        else tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        for name, value in values.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(), jpeg.is_new


def _shuffled(split: Split, seed: int) -> npt.NDArray[np.int64]:
    """Returns the rows in the order of their names' hashes, independent of any random generator's version."""
    salt = str(seed).encode()
    hashes = [hashlib.sha1(salt + os.fsencode(split.index.file_name(row))).digest() for row in range(split.num_rows)]
    return np.asarray(sorted(range(split.num_rows), key=hashes.__getitem__), np.int64)


def _texts(root: Path) -> dict[str, str]:
    """Returns the descriptions of the classes, from a list beside the images with lines such as `n01440764 tench`."""
    for name in ("LOC_synset_mapping.txt", "synset_words.txt"):
        file = root / name
        if file.is_file():
            return dict(_pairs(os.fsdecode(file.read_bytes())))
    return {}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        wnid, _, words = line.partition(" ")
        if words:
            yield wnid, words.strip()
