"""The exit code and exit reason that a rank leaves for its launcher. Standard library only.

The launcher passes a folder to its ranks. A rank whose program fails writes its exit reason there in one line, and the
traceback of an error that was logged in short.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: The exit code of a process that was asked to end, has saved a checkpoint and can resume later: EX_TEMPFAIL of BSD.
PREEMPTED = 75

#: The environment variable that names the folder.
FOLDER_VARIABLE = "STRATEGIES_TRACEBACK_DIR"

REASON_SUFFIX = ".reason"


def reason_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Returns the path of the file with a rank's exit reason."""
    return Path(folder) / f"rank-{rank}{REASON_SUFFIX}"


def leave_reason(rank: int, reason: str) -> None:
    """Writes this process' exit reason for its launcher, if it has one; an empty reason deletes it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    with contextlib.suppress(OSError):
        if reason:
            reason_file(folder, rank).write_text(reason)
        else:
            reason_file(folder, rank).unlink(missing_ok=True)


def leave_traceback(rank: int, text: str) -> Path | None:
    """Writes the traceback of an error that is logged in short; returns its path, or None if it cannot be written."""
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
    """Returns a rank's exit reason in one line; empty if it left none."""
    with contextlib.suppress(OSError):
        return " ".join(reason_file(folder, rank).read_text(errors="replace").split())
    return ""
