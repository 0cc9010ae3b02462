"""The position of a process in its program, such as the step of `fit`; as text, for messages."""

from __future__ import annotations

from dataclasses import dataclass


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
