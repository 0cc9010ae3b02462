"""The IDX file format of MNIST: a header of sizes, then bytes; plain, or compressed with gzip."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08


class DataError(ValueError):
    """The digits cannot be read; the message is one line for the user."""


def find_idx(folder: Path, name: str, num_dims: int) -> Path:
    """Returns the path of `NAME-idxN-ubyte` or `NAME.idxN-ubyte`, plain or `.gz`, whichever exists."""
    candidates = [
        folder / f"{name}{separator}idx{num_dims}-ubyte{suffix}" for separator in "-." for suffix in ("", ".gz")
    ]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise DataError(
        f"{candidates[0]}: missing, and so are {', '.join(path.name for path in candidates[1:])}. "
        f"Put the file there, or omit --data_dir to train on digits that are on this machine."
    )


def read_idx(path: Path, num_dims: int) -> npt.NDArray[np.uint8]:
    """Returns the unsigned bytes of an IDX file as an array of `num_dims` dimensions.

    Layout, all integers big-endian: a magic number (two zero bytes, the element type, the number of dimensions), a
    32-bit size per dimension, and exactly the number of elements that the sizes give.

    Raises:
        DataError: The file cannot be read, is another kind of file, or is damaged.
    """
    content = _read_bytes(path)
    header_bytes = 4 + 4 * num_dims
    expected_magic = (_UNSIGNED_BYTE << 8) | num_dims
    if len(content) >= 4:
        (magic,) = struct.unpack(">I", content[:4])
        if magic != expected_magic:
            raise DataError(
                f"{path}: wrong magic number, expected {expected_magic} (unsigned bytes, {num_dims} "
                f"dimension(s)), received {magic}. It is another kind of file: put the original in its place."
            )
    if len(content) < header_bytes:
        raise DataError(
            f"{path}: truncated, expected a header of {header_bytes} bytes, "
            f"received a file of {len(content)}. Copy the file again."
        )
    shape = struct.unpack(f">{num_dims}I", content[4:header_bytes])
    # Python integers do not overflow: the sizes in a damaged header cannot wrap around to a valid number.
    expected, received = math.prod(shape), len(content) - header_bytes
    if received != expected:
        raise DataError(
            f"{path}: {'truncated' if received < expected else 'too long'}, "
            f"expected {expected} bytes for the shape {shape} in its header, "
            f"received {received}. Copy the file again."
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    """Returns the file's bytes, decompressed if they are gzip.

    The content decides, not the name: a browser may unpack a download and leave it called `.gz`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check that it is a readable file.") from error
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip ({error}). Copy the file again.") from error
