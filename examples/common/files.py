"""Files that are there whole or not at all, whatever is killed, and however many processes write them."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file by way of another beside it, which no other process of any host has.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
