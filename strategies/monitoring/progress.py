"""The progress of a training, as callbacks note it: a few attributes, so that a step costs nothing more."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

# The window of rates, in seconds, and the most moments that are kept of it.
_WINDOW_SECONDS = 10.0
_MOST_MOMENTS = 64
# A step counts as one after a pause, as of a validation or a save, if it ends so much later than is usual.
_LEAST_PAUSE_SECONDS, _TIMES_USUAL = 1.0, 5.0


class Progress:
    """The progress of this process' training. The thread that trains writes it, and the reporter reads it.

    Args:
        clock: returns the time in seconds.

    Attributes:
        total_steps: the finished training steps of the process, over all calls of `fit`.
        epoch, epochs: the running epoch, from 1, and the last one; 0 before the first `fit`.
        step, steps_per_epoch: the finished steps of the epoch, and its number of steps; None if it is not known.
        units_per_step, unit: the units of a global batch, and their name; None if it is not known.
        rows_of_next: the rows of the batches that the next training draws; None if it is not known.
        is_training: True while `fit` runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.total_steps = 0
        self.epoch = self.epochs = self.step = 0
        self.steps_per_epoch: int | None = None
        self.units_per_step: float | None = None
        self.unit = "rows"
        self.rows_of_next: int | None = None
        self.is_training = False
        # The time, and the steps of this `fit`, at the end of its first execution, which traced the step.
        self._measured_from: tuple[float, int] | None = None

    def begin(self, epochs: int, steps_per_epoch: int | None) -> None:
        """Notes that `fit` begins; `epochs` is the number of its last epoch, counted from 1."""
        self.epoch, self.epochs, self.step, self.steps_per_epoch = 0, epochs, 0, steps_per_epoch
        self.units_per_step, self.unit = self.rows_of_next, "rows"
        self._measured_from, self.is_training = None, True

    def begin_epoch(self, epoch: int) -> None:
        """Notes that an epoch begins, counted from 1."""
        if self.steps_per_epoch is None and self.step:
            # The epoch before has shown it.
            self.steps_per_epoch = self.step
        self.epoch, self.step = epoch, 0

    def note_step(self, step: int) -> None:
        """Notes the number of finished steps of the epoch."""
        self.total_steps += step - self.step
        self.step = step
        if self._measured_from is None and (done := self._done()) is not None:
            self._measured_from = self._clock(), done

    def end(self) -> None:
        """Notes that `fit` has ended."""
        self.is_training = False

    def _done(self) -> int | None:
        """Returns the finished steps of all epochs of the model, those of earlier calls of `fit` included."""
        if self.steps_per_epoch is None:
            return self.step if self.epoch <= 1 else None
        return (self.epoch - 1) * self.steps_per_epoch + self.step

    @property
    def fraction(self) -> float | None:
        """The finished share of all steps up to the last epoch, from 0 to 1; None if it is not known."""
        if not self.epochs or not self.steps_per_epoch:
            return None
        return min(1.0, max(0, self._done() or 0) / (self.epochs * self.steps_per_epoch))

    @property
    def seconds_left(self) -> float | None:
        """The time that `fit` still takes if the rest is as fast as it was so far, validation included."""
        measured, done = self._measured_from, self._done()
        if not self.is_training or measured is None or done is None or not self.steps_per_epoch:
            return None
        passed = done - measured[1]
        left = self.epochs * self.steps_per_epoch - done
        return None if passed <= 0 else max(0.0, left * (self._clock() - measured[0]) / passed)


@dataclass(frozen=True)
class _Moment:
    time: float
    steps: int


class StepRate:
    """The steps per second of the last ten seconds, or of the last two steps if these are slower, since the last pause.

    Example:

        rate = StepRate()
        rate.note(now=0.0, steps=1)
        rate.note(now=2.0, steps=5)
        assert rate.per_second(now=2.0) == 2.0
    """

    def __init__(self) -> None:
        self._moments: collections.deque[_Moment] = collections.deque(maxlen=_MOST_MOMENTS)

    def note(self, now: float, steps: int) -> None:
        """Notes the number of finished steps at a time; only changes count, and not the first step, which is traced."""
        if len(self._moments) == 1 and self._moments[0].steps == 0 and steps:
            self._moments.clear()
        if not self._moments or self._moments[-1].steps != steps:
            if self._is_after_pause(now):
                self._moments.clear()
            self._moments.append(_Moment(now, steps))
            while len(self._moments) > 2 and self._moments[1].time < now - _WINDOW_SECONDS:
                self._moments.popleft()

    @property
    def seconds(self) -> float:
        """The time over which the steps are counted."""
        return self._moments[-1].time - self._moments[0].time if self._moments else 0.0

    def _is_after_pause(self, now: float) -> bool:
        if len(self._moments) < 2:
            return False
        usual = self.seconds / (len(self._moments) - 1)
        return now - self._moments[-1].time > max(_LEAST_PAUSE_SECONDS, _TIMES_USUAL * usual)

    def per_second(self, now: float) -> float | None:
        """Returns the steps per second; None before the second change. It falls while no step ends."""
        if len(self._moments) < 2:
            return None
        first, last = self._moments[0], self._moments[-1]
        steps, seconds = last.steps - first.steps, last.time - first.time
        # A step that takes longer than those before shows before it ends.
        usual = seconds / max(1, len(self._moments) - 1)
        late = now - last.time - 2 * usual
        return steps / (seconds + max(0.0, late)) if seconds + max(0.0, late) > 0 else None
