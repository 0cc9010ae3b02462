"""Files that raise write errors only after everything is written, for libraries that do not survive such errors.

HDF5 (1.14, under h5py 3) cannot close a file after a write to a full disk has failed: it raises again in destructors,
and ends the interpreter with a segmentation fault. So the error is hidden from it: the rest of what it writes is
dropped, and the code that asked for the file gets the system's own error.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import pathlib
from collections.abc import Iterator
from typing import Any

_files: contextvars.ContextVar[list[LateErrorFile] | None] = contextvars.ContextVar(
    "keras_strategies_late_errors", default=None
)


class LateErrorFile(io.RawIOBase):
    """A binary file that keeps the first write error, and drops data written after that error or after closing.

    Keras leaves HDF5 files open after an error of its own; HDF5 then writes once more when they are garbage-collected.

    Args:
        path: the path of the file.
        mode: "w" for a new file; "a" for one that may exist.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str) -> None:
        super().__init__()
        self.name = os.fspath(path)
        is_new = mode == "w" or not pathlib.Path(path).exists()
        # `close` closes it.
        self._file = pathlib.Path(path).open("w+b" if is_new else "r+b", buffering=0)  # noqa: SIM115
        self.error: OSError | None = None

    def readable(self) -> bool:
        """Returns True: HDF5 reads what it has written."""
        return True

    def writable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a position, in bytes, and returns it."""
        return 0 if self._file.closed else self._file.seek(offset, whence)

    def tell(self) -> int:
        """Returns the position, in bytes."""
        return 0 if self._file.closed else self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer; returns the number of bytes."""
        return self._file.readinto(buffer) or 0

    def write(self, data: Any) -> int:
        """Writes all of the data, or drops it after an error; returns its number of bytes."""
        rest = memoryview(data).cast("B")
        num_bytes = len(rest)
        with self._kept():
            while len(rest) and self.error is None and not self._file.closed:
                rest = rest[self._file.write(rest) :]
        return num_bytes

    def truncate(self, size: int | None = None) -> int:
        """Sets the size of the file."""
        with self._kept():
            return size or 0 if self._file.closed else self._file.truncate(size)
        return size or 0

    def flush(self) -> None:
        """Does nothing: writes are not buffered, and HDF5 also flushes files that are closed already."""

    def close(self) -> None:
        """Closes the file; the system may report only now that a write failed."""
        # Python closes it, too, if it could not be opened.
        if "_file" in vars(self):
            with self._kept():
                self._file.close()
        super().close()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or OSError(error.errno, error.strerror, self.name)


@contextlib.contextmanager
def late_errors() -> Iterator[None]:
    """Context manager: `open_late` opens files, which are closed at the end.

    Raises:
        OSError: at the end, if one of these files could not be written.
    """
    files: list[LateErrorFile] = []
    token = _files.set(files)
    error = None
    try:
        yield
    except OSError as caught:
        # It may be a mere consequence: code that reads a file back finds it truncated.
        error = caught
    finally:
        _files.reset(token)
        for file in files:
            file.close()
    error = next((file.error for file in files if file.error is not None), error)
    if error is not None:
        raise error


def open_late(path: str | os.PathLike[str], mode: str) -> LateErrorFile | None:
    """Opens a file whose errors are raised at the end of `late_errors`; returns None outside `late_errors`."""
    files = _files.get()
    if files is None:
        return None
    files.append(LateErrorFile(path, mode))
    return files[-1]
