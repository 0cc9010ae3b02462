"""The folder of a job on a node, where its ranks leave their tracebacks. Standard library only."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from strategies.launching.ports import LaunchError
from strategies.topology.rank_end import REASON_SUFFIX


class JobFolder:
    """A new folder that only this user can enter. All restarts of the job use the same one.

    Raises:
        LaunchError: the folder cannot be made.
    """

    def __init__(self) -> None:
        try:
            # mkdtemp makes it with mode 0700.
            self.path: str = tempfile.mkdtemp(prefix="strategies-")
        except OSError as error:
            raise LaunchError(
                f"A folder for tracebacks cannot be made: {error}. Free some space, or set TMPDIR to another folder."
            ) from None

    @property
    def has_tracebacks(self) -> bool:
        """True if a file in the folder is not empty: `faulthandler` opens its file long before it writes to it."""
        found = False
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            own = [entry for entry in entries if not entry.name.endswith(REASON_SUFFIX)]
            found = any(entry.is_dir() or entry.stat().st_size > 0 for entry in own)
        return found

    def forget_reasons(self) -> None:
        """Removes the exit reasons that ranks of an earlier round have left."""
        with contextlib.suppress(OSError):
            for path in Path(self.path).glob(f"*{REASON_SUFFIX}"):
                path.unlink()

    def close(self, *, ended_well: bool) -> Path | None:
        """Removes the folder; if the job failed and it has tracebacks, keeps it instead and returns its path."""
        self.forget_reasons()
        if not ended_well and self.has_tracebacks:
            return Path(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        return None
