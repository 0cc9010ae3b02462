"""The watchdog: it aborts collectives that wait too long, and nothing else.

The effect of an abort is tested by `test_tf_runtime` and between processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

from strategies.collectives import watchdog as watching
from strategies.collectives.watchdog import Watchdog
from strategies.control_plane import Wait
from tests.clock import Clock

TIMEOUT_SECONDS = 1.0
LOOKS_PER_TIMEOUT = 5


class Pauses(threading.Event):
    """The pauses between the looks of a watchdog, and its end. Each pause lasts until the test ends it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._begun, self._over = clock, threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Called by the watchdog."""
        self.note()
        self._over.acquire()
        self._clock.sleep(timeout or 0.0)
        return self.is_set()

    def set(self) -> None:
        """Ends the watchdog."""
        super().set()
        self._over.release()

    def step(self) -> None:
        """Ends a pause; returns when the next one has begun, or the watchdog has ended."""
        assert self._begun.acquire(timeout=60)
        self._over.release()
        assert self._begun.acquire(timeout=60)
        self.note()

    def note(self) -> None:
        """Notes that a pause has begun, or that there will be no more."""
        self._begun.release()


class RecordingWatchdog(Watchdog):
    """Records an abort instead of aborting the collectives."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.reasons: list[str] = []
        super().__init__("Rank 0 of 1", TIMEOUT_SECONDS, self._note, "a_setting=...")
        self._entry = self.ledger.entry(Wait("1", (0,), "all_reduce"))

    def started(self, value: tf.Tensor) -> tf.Tensor:
        return self._entry.started(value)

    def done(self, value: tf.Tensor) -> tf.Tensor:
        return self._entry.done(value)

    def _note(self, why: str) -> None:
        self.reasons.append(why)
        self.ended.set()


class SteppedWatchdog(RecordingWatchdog):
    """Looks when the test says so."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._stop = self._pauses = Pauses(clock)

    def look(self, count: int = 1) -> None:
        """Looks `count` times, each a pause later, or until it aborts."""
        for _ in range(count):
            if not self.ended.is_set():
                self._pauses.step()

    def _note(self, why: str) -> None:
        super()._note(why)
        self._pauses.note()


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppedWatchdog]:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    watchdog = SteppedWatchdog(clock)
    owner = threading.Event()
    watchdog.start(owner)
    yield watchdog
    watchdog.stop()


def test_nothing_waits(watchdog: SteppedWatchdog) -> None:
    exchange = tf.function(lambda value: watchdog.done(watchdog.started(value) + 1.0))
    assert float(exchange(tf.constant(1.0))) == 2.0
    watchdog.look(3 * LOOKS_PER_TIMEOUT)
    assert not watchdog.ended.is_set()


def test_one_waits_too_long() -> None:
    """By the real clock."""
    watchdog, owner = RecordingWatchdog(), threading.Event()
    watchdog.start(owner)
    tf.function(lambda value: watchdog.done(watchdog.started(value)))(tf.constant(1.0))
    start = time.monotonic()
    tf.function(watchdog.started)(tf.constant(1.0))
    assert watchdog.ended.wait(60)
    assert time.monotonic() - start >= TIMEOUT_SECONDS
    [why] = watchdog.reasons
    assert why.startswith("Rank 0 of 1 has waited 1 s for the others in a collective, in the all_reduce.")
    assert why.endswith("allow more time with a_setting=..., 0 for no limit.")


def test_others_are_done_while_one_waits(watchdog: SteppedWatchdog) -> None:
    tf.function(watchdog.started)(tf.constant(1.0))
    exchange = tf.function(lambda value: watchdog.done(watchdog.started(value)))
    for _ in range(3 * LOOKS_PER_TIMEOUT):
        exchange(tf.constant(1.0))
        watchdog.look()
    watchdog.look(LOOKS_PER_TIMEOUT - 1)
    assert not watchdog.ended.is_set()
    # The last one may come a little later: the pauses are no multiples of a power of two.
    watchdog.look(2)
    assert watchdog.ended.is_set()


def test_counts_in_loops_branches_and_gradients(watchdog: SteppedWatchdog) -> None:
    @tf.custom_gradient
    def exchange(value: tf.Tensor) -> object:
        return watchdog.done(watchdog.started(value)), lambda upstream: watchdog.done(watchdog.started(upstream))

    @tf.function
    def program(value: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            total = value
            for _ in tf.range(3):
                total = exchange(total)
            if total > 0.0:
                total = exchange(total) * 2.0
        return tape.gradient(total, value)

    assert float(program(tf.constant(1.0))) == 2.0
    watchdog.look(3 * LOOKS_PER_TIMEOUT)
    assert not watchdog.ended.is_set()


def test_after_its_end_it_looks_no_more(watchdog: SteppedWatchdog) -> None:
    watchdog.stop()
    assert watchdog._thread is not None
    watchdog._thread.join(60)
    assert not watchdog._thread.is_alive()
    assert not watchdog.reasons
