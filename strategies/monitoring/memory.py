"""The memory of this process, as the system counts it. Standard library only."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Returns the host memory that this process uses now; None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def peak_resident_bytes() -> int:
    """Returns the most host memory that this process has used."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
