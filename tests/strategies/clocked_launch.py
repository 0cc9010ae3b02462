"""Starts the launcher with a clock that a test moves: ``-m tests.strategies.clocked_launch FOLDER ARGUMENTS``.

The clock changes only between two turns of the launcher's loop, and the loop has no other limit of time: it goes on at
an event. So a job that ends although nobody moves the clock has waited for events alone. See `launching.Clocked`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from strategies import launch
from strategies.launching import agent, links, processes
from strategies.launching.signals import Signals
from tests.clock import Clock

#: Files of the folder: the time in seconds, with a number that makes it unique; the last one with which a turn is over.
TIME, TURNED = "time", "turned"
_clock = Clock()


class _Turns(Signals):
    """Sets the clock at the start of each turn, and notes the end of each turn."""

    _folder = Path()
    _text = ""

    def wait(self, timeout_seconds: float | None, interests: Mapping[int, int]) -> list[int]:
        """Waits for an event, however long it takes, unless the loop is to go on at once."""
        (self._folder / TURNED).write_text(self._text)
        found = super().wait(None if timeout_seconds else timeout_seconds, interests)
        self._text = (self._folder / TIME).read_text()
        _clock.seconds = float(self._text.split()[0])
        return found


if __name__ == "__main__":
    _Turns._folder = Path(sys.argv[1])
    agent.__dict__["Signals"] = _Turns
    for module in (agent, links, processes):
        module.__dict__["time"] = _clock
    sys.exit(launch.main(sys.argv[2:]))
