"""Progress and speed, with a clock that the test moves."""

from __future__ import annotations

import pytest

from strategies.monitoring.progress import Progress, StepRate
from tests.clock import Clock


def test_a_training() -> None:
    clock = Clock()
    progress = Progress(clock.monotonic)
    assert (progress.fraction, progress.seconds_left, progress.is_training) == (None, None, False)
    progress.begin(epochs=3, steps_per_epoch=4)
    progress.begin_epoch(1)
    # The first step is traced: it says nothing of the others.
    clock.seconds += 60
    progress.note_step(1)
    assert (progress.fraction, progress.seconds_left) == (1 / 12, None)
    clock.seconds += 2
    progress.note_step(2)
    assert (progress.fraction, progress.seconds_left) == (2 / 12, 20.0)
    progress.note_step(4)
    progress.begin_epoch(2)
    assert (progress.epoch, progress.step, progress.total_steps, progress.fraction) == (2, 0, 4, 4 / 12)
    progress.note_step(3)
    assert progress.total_steps == 7
    progress.end()
    assert progress.seconds_left is None


def test_a_training_that_goes_on() -> None:
    """Epochs of an earlier run count as finished, and do not count for the speed."""
    clock = Clock()
    progress = Progress(clock.monotonic)
    progress.begin(epochs=10, steps_per_epoch=10)
    progress.begin_epoch(6)
    progress.note_step(1)
    clock.seconds += 3
    progress.note_step(4)
    assert (progress.fraction, progress.seconds_left, progress.total_steps) == (0.54, 46.0, 4)


def test_the_first_epoch_shows_the_number_of_steps() -> None:
    clock = Clock()
    progress = Progress(clock.monotonic)
    progress.begin(epochs=2, steps_per_epoch=None)
    progress.begin_epoch(1)
    progress.note_step(1)
    clock.seconds += 4
    progress.note_step(5)
    assert (progress.fraction, progress.seconds_left) == (None, None)
    progress.begin_epoch(2)
    assert (progress.steps_per_epoch, progress.fraction, progress.seconds_left) == (5, 0.5, 5.0)


def test_the_units_of_one_training_are_not_those_of_the_next() -> None:
    progress = Progress()
    progress.rows_of_next = 32
    progress.begin(epochs=1, steps_per_epoch=1)
    assert (progress.units_per_step, progress.unit) == (32, "rows")
    progress.units_per_step, progress.unit, progress.rows_of_next = 4096.0, "tokens", None
    progress.begin(epochs=1, steps_per_epoch=1)
    assert progress.units_per_step is None
    assert progress.unit == "rows"


def test_nothing_is_finished_before_the_first_epoch() -> None:
    progress = Progress()
    progress.begin(epochs=2, steps_per_epoch=10)
    assert progress.fraction == 0.0


class TestStepRate:
    def test_it_needs_two_changes(self) -> None:
        rate = StepRate()
        assert rate.per_second(0.0) is None
        rate.note(0.0, 0)
        # The first step, which is traced, does not count.
        rate.note(60.0, 1)
        assert rate.per_second(60.0) is None
        rate.note(61.0, 3)
        assert rate.per_second(61.0) == 2.0

    def test_of_the_last_ten_seconds(self) -> None:
        rate = StepRate()
        for second in range(30):
            rate.note(float(second), second * (1 if second < 15 else 2))
        assert rate.per_second(29.0) == pytest.approx(2.0)

    def test_slow_steps_count_two_of_them(self) -> None:
        rate = StepRate()
        for steps in range(4):
            rate.note(steps * 60.0, 1 + steps)
        assert rate.per_second(180.0) == pytest.approx(1 / 60)

    def test_a_pause_does_not_count(self) -> None:
        """As of a validation of six seconds."""
        rate = StepRate()
        for steps in range(21):
            rate.note(steps * 0.25, 1 + steps)
        rate.note(11.0, 22)
        assert rate.per_second(11.0) is None
        rate.note(11.25, 23)
        assert rate.per_second(11.25) == 4.0

    def test_steps_that_become_slow_show(self) -> None:
        rate = StepRate()
        for steps in range(11):
            rate.note(steps * 0.1, 1 + steps)
        for steps in range(3):
            rate.note(3.0 + 2.0 * steps, 12 + steps)
        assert rate.per_second(7.0) == 0.5

    def test_it_falls_while_nothing_happens(self) -> None:
        rate = StepRate()
        for steps in range(11):
            rate.note(steps * 0.1, 1 + steps)
        assert rate.per_second(1.1) == pytest.approx(10.0)
        assert rate.per_second(10.2) == pytest.approx(1.0)
