"""The index of TFRecord shards, from the headers of their records. Pure numpy, no TensorFlow.

A record is a length (8 bytes), the checksum of the length (4), the content, and the content's checksum (4), all
little-endian. To find 1,281,167 records in 140 GB, only 15 MB have to be read.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imagenet.errors import DataError
from imagenet.index import IN_RECORD, Index, packed_names

HEADER_BYTES, FOOTER_BYTES = 12, 4

#: A set with a larger fraction of its bytes in unreadable records is refused.
MAX_LOST_SHARE = 0.01

#: Reading a header is latency-bound, milliseconds on a network file system.
NUM_THREADS = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Shard:
    """The records of one shard up to the first unreadable one.

    Attributes:
        offsets: int64, starts of the records.
        lengths: int64, bytes of their contents.
        num_bytes: size of the file.
        lost_bytes: number of bytes after the last readable record.
    """

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    num_bytes: int
    lost_bytes: int


def walk(path: Path) -> Shard:
    """Finds the records of a shard.

    Raises:
        OSError: the file cannot be read.
    """
    offsets, headers = [], []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        position = 0
        while position < size:
            header = os.pread(descriptor, HEADER_BYTES, position)
            if len(header) < HEADER_BYTES:
                break
            end = position + HEADER_BYTES + struct.unpack_from("<Q", header)[0] + FOOTER_BYTES
            if end > size:
                break
            offsets.append(position)
            headers.append(header)
            position = end
    finally:
        os.close(descriptor)
    bytes_of = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, HEADER_BYTES)
    lengths = np.ascontiguousarray(bytes_of[:, :8]).view("<u8").reshape(-1).astype(np.int64)
    stored = np.ascontiguousarray(bytes_of[:, 8:]).view("<u4").reshape(-1)
    # All checksums at once: a loop in Python would take longer than reading.
    bad = np.flatnonzero(masked_crc32c(bytes_of[:, :8]) != stored)
    good = int(bad[0]) if len(bad) else len(offsets)
    starts = np.asarray(offsets, np.int64)
    end = int(starts[good - 1] + lengths[good - 1]) + HEADER_BYTES + FOOTER_BYTES if good else 0
    return Shard(starts[:good], lengths[:good], size, size - end)


def index_of_shards(root: Path, names: Sequence[str], classes: Sequence[str]) -> Index:
    """Returns the index of all shards' records, scanned in parallel; logs a line every few seconds.

    A shard that ends early, or has damaged headers, contributes the records before the damage and logs a warning.

    Args:
        root: the data folder.
        names: paths of the shards, relative to it.
        classes: names of the classes.

    Raises:
        DataError: a shard cannot be read, or more than a hundredth of all bytes cannot be used.
    """
    shards: list[Shard] = []
    next_line = time.monotonic() + 5.0
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        walks = [pool.submit(walk, root / name) for name in names]
        try:
            for name, future in zip(names, walks, strict=True):
                try:
                    shards.append(future.result())
                except OSError as error:
                    raise DataError(
                        f"{root / name}: cannot be read ({error.strerror}). Check that it is a readable file."
                    ) from error
                if time.monotonic() >= next_line:
                    next_line += 5.0
                    _log.info("looking for records: %d of %d shards", len(shards), len(names))
        finally:
            pool.shutdown(cancel_futures=True)
    _judge(root, names, shards)
    packed, ends = packed_names(names)
    lengths = [len(shard.offsets) for shard in shards]
    return Index(
        packed,
        ends,
        np.repeat(np.arange(len(names), dtype=np.int32), lengths),
        np.concatenate([shard.offsets for shard in shards]),
        np.concatenate([shard.lengths for shard in shards]),
        np.full(sum(lengths), IN_RECORD, np.int32),
        tuple(classes),
    )


def _judge(root: Path, names: Sequence[str], shards: Sequence[Shard]) -> None:
    """Warns of damaged shards; raises if too many bytes are lost or a shard is empty.

    Raises:
        DataError: a shard is empty, or more than `MAX_LOST_SHARE` of all bytes is lost.
    """
    damaged = [(name, shard) for name, shard in zip(names, shards, strict=True) if shard.lost_bytes]
    empty = [name for name, shard in zip(names, shards, strict=True) if not shard.num_bytes]
    share = sum(shard.lost_bytes for _, shard in damaged) / max(1, sum(shard.num_bytes for shard in shards))
    if empty:
        raise DataError(
            f"{root / empty[0]}: empty, as are {len(empty) - 1} other shard(s). Make or copy them again: "
            f"a shard that was cut off before its first record looks the same as one that was never written."
        )
    if share > MAX_LOST_SHARE:
        name, shard = damaged[0]
        raise DataError(
            f"{root / name}: no TFRecord file, or damaged after record {len(shard.offsets)} (byte "
            f"{shard.num_bytes - shard.lost_bytes} of {shard.num_bytes}), and {len(damaged)} shard(s) like it make "
            f"{share:.1%} of all bytes. Shards must be uncompressed; make or copy these again."
        )
    for name, shard in damaged:
        _log.warning(
            "%s: damaged after record %d (byte %d of %d); the records before that are used",
            root / name,
            len(shard.offsets),
            shard.num_bytes - shard.lost_bytes,
            shard.num_bytes,
        )


def masked_crc32c(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Returns the checksum of each row of bytes, as stored in TFRecords: CRC-32C, rotated, plus a constant."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC_TABLE[(crc ^ rows[:, column]) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return (((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)).astype(np.uint32)


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_CRC_TABLE = _crc_table()
