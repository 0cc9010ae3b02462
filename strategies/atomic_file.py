"""Files that are written completely or not at all. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Context manager: yields a path in the same folder to write to; that file replaces ``path`` when the block ends.

    If the block raises an error, the file is deleted. Only one process at a time may write a file this way.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        # Only on an error: after the replacement, a file of this name would belong to another process.
        part.unlink(missing_ok=True)
        raise
