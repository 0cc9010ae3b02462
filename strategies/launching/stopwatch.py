"""The time that something has lasted, as far as this process ran meanwhile. Standard library only."""

import time

# Looked at as often as this while it runs; a longer time between two looks is one in which this process was stopped.
_SECONDS_BETWEEN_LOOKS = 1.0
_MOST_SECONDS_BETWEEN_LOOKS = 2.0


class Stopwatch:
    """Counts how long something lasts. Times in which this process itself was stopped, as with its job, do not count.

    Example:

        watch = Stopwatch()
        while watch.seconds < 30:
            watch.look(goes_on=is_stopped(pid))
            time.sleep(watch.seconds_left)
    """

    def __init__(self) -> None:
        self._looked_at: float | None = None
        #: The time that it has lasted, in seconds; 0 if it does not.
        self.seconds = 0.0

    def look(self, *, goes_on: bool) -> None:
        """Takes note that it goes on, or does not."""
        now = time.monotonic()
        if not goes_on:
            self._looked_at, self.seconds = None, 0.0
            return
        if self._looked_at is not None:
            self.seconds += min(now - self._looked_at, _MOST_SECONDS_BETWEEN_LOOKS)
        self._looked_at = now

    @property
    def seconds_left(self) -> float:
        """The time until the next look, infinite if it does not run."""
        return float("inf") if self._looked_at is None else _SECONDS_BETWEEN_LOOKS
