"""The position of a process in its program, as its messages to the others say it."""

from __future__ import annotations

import sys
import sysconfig
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

_LIBRARY = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True)
class Position:
    """The position of a process in its program.

    Attributes:
        call: the method of the model that runs, such as "fit"; empty between calls.
        epoch: the epoch of `fit`, counted from 1 as in the progress bar; 0 for calls without epochs.
        step: the number of finished steps of the epoch, or of the call.
        last_call: the last call that has ended.
    """

    call: str = ""
    epoch: int = 0
    step: int = 0
    last_call: str = ""

    def __str__(self) -> str:
        done = f"after step {self.step}" if self.step else "before its first step"
        if self.call:
            return f"in {self.call}, {f'epoch {self.epoch}, ' if self.epoch else ''}{done}"
        if self.last_call:
            return f"after {self.last_call}, {f'epoch {self.epoch}, ' if self.epoch else ''}{done}"
        return "before its first call of fit, evaluate or predict"


def line_of_program() -> str:
    """Returns the line at which the main thread is in the user's program, as in ", at train.py:12 in main"."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame) if frame else []
    own = [entry for entry in stack if not _is_library_file(entry.filename)]
    return f", at {Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library_file(path: str) -> bool:
    ours = Path(__file__).parents[1]
    return "site-packages" in path or path.startswith(("<", _LIBRARY)) or ours in Path(path).parents
