"""The peak of a process' resident memory while it does something. Linux only, standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

#: With these, blocks of memory that are freed go back to the system at once, and are not counted any more.
FREES_AT_ONCE = {
    # oneDNN's allocator keeps what it has had.
    "TF_ENABLE_ONEDNN_OPTS": "0",
    # glibc raises its threshold, above which blocks are pages of their own, unless it is told one.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


def peak(call: Callable[[], object]) -> tuple[int, int]:
    """Returns the bytes that are resident before the call, and at their highest during it."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        # Of glibc: what is free goes back to the system.
        ctypes.CDLL(None).malloc_trim(0)
    forget_highest()
    before = _status("VmRSS")
    call()
    return before, highest()


def forget_highest() -> None:
    """Lets the kernel forget the highest value that this process' resident memory has had."""
    Path("/proc/self/clear_refs").write_text("5")


def highest() -> int:
    """Returns the most bytes that were resident since the kernel forgot."""
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"This system does not say {name} in /proc/self/status.")
    return 1024 * int(found[1])
