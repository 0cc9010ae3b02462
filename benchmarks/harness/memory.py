"""The peak of a process' resident memory during a call. Linux only, standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

#: With these variables, freed blocks of memory are returned to the system at once, and are no longer counted.
FREES_AT_ONCE = {
    # oneDNN's allocator keeps freed memory.
    "TF_ENABLE_ONEDNN_OPTS": "0",
    # By default glibc raises the threshold above which blocks are mapped separately; an explicit value disables that.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


def peak(call: Callable[[], object]) -> tuple[int, int]:
    """Returns the resident bytes before the call, and their maximum during it."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        # A function of glibc: returns free memory to the system.
        ctypes.CDLL(None).malloc_trim(0)
    forget_highest()
    before = _status("VmRSS")
    call()
    return before, highest()


def forget_highest() -> None:
    """Resets the kernel's record of this process' peak resident memory."""
    Path("/proc/self/clear_refs").write_text("5")


def highest() -> int:
    """Returns the peak of resident bytes since `forget_highest`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"This system does not report {name} in /proc/self/status.")
    return 1024 * int(found[1])
