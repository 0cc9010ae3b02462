"""The time for which a condition has held while this process was running. Standard library only."""

import time

# A running stopwatch is read this often; if the time between two looks is longer, this process was stopped meanwhile.
_SECONDS_BETWEEN_LOOKS = 1.0
_MOST_SECONDS_BETWEEN_LOOKS = 2.0


class Stopwatch:
    """Counts how long a condition holds. Times in which this process itself was stopped, as with its job, do not count.

    Example:

        watch = Stopwatch()
        while watch.seconds < 30:
            watch.look(goes_on=is_stopped(pid))
            time.sleep(watch.seconds_left)
    """

    def __init__(self) -> None:
        self._looked_at: float | None = None
        #: The seconds for which the condition has held; 0 if it does not hold.
        self.seconds = 0.0

    def look(self, *, goes_on: bool) -> None:
        """Notes whether the condition holds now."""
        now = time.monotonic()
        if not goes_on:
            self._looked_at, self.seconds = None, 0.0
            return
        if self._looked_at is not None:
            self.seconds += min(now - self._looked_at, _MOST_SECONDS_BETWEEN_LOOKS)
        self._looked_at = now

    @property
    def seconds_left(self) -> float:
        """The time until the next look; infinite if the condition does not hold."""
        return float("inf") if self._looked_at is None else _SECONDS_BETWEEN_LOOKS
