"""The end of a rank, as its process and its launcher agree on it: an exit code, and files. Standard library only.

The launcher names a folder to its ranks. A rank whose program fails leaves the reason there in one line, and the
traceback of an error that was told in short.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: The exit code of a process that was asked to end, has saved a checkpoint and can go on later: EX_TEMPFAIL of BSD.
PREEMPTED = 75

#: The variable that names the folder.
FOLDER_VARIABLE = "STRATEGIES_TRACEBACK_DIR"

REASON_SUFFIX = ".reason"


def reason_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Returns the path of the line that says why a rank ended."""
    return Path(folder) / f"rank-{rank}{REASON_SUFFIX}"


def leave_reason(rank: int, reason: str) -> None:
    """Writes why this process ends, for its launcher; an empty reason takes it back. Without a launcher, nothing."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    with contextlib.suppress(OSError):
        if reason:
            reason_file(folder, rank).write_text(reason)
        else:
            reason_file(folder, rank).unlink(missing_ok=True)


def leave_traceback(rank: int, text: str) -> Path | None:
    """Writes the traceback of an error that is told in short; returns its path, None where there is no place for it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    path = Path(folder) / f"rank-{rank}.txt"
    try:
        path.write_text(text)
    except OSError:
        return None
    return path


def read_reason(folder: str | os.PathLike[str], rank: int) -> str:
    """Returns why a rank ended, in one line; empty if it did not say."""
    with contextlib.suppress(OSError):
        return " ".join(reason_file(folder, rank).read_text(errors="replace").split())
    return ""
