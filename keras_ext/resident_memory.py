"""The resident memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes(status: Path = _STATUS) -> tuple[int, int] | None:
    """Returns the bytes of this process that are in memory, now and at its peak; None if the system does not report it.

    Args:
        status: the status file of the process, as Linux writes it.
    """
    try:
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status.read_text(), flags=re.MULTILINE))
    except OSError:
        return None
    return (int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024) if len(found) == 2 else None
