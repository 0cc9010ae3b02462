"""The watchdog: it aborts collectives that wait too long, and nothing else.

The effect of an abort is tested by `test_tf_runtime` and between processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

from strategies.collectives.watchdog import Watchdog
from strategies.control_plane import Wait

TIMEOUT_SECONDS = 1.0


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


@pytest.fixture
def watchdog() -> Iterator[RecordingWatchdog]:
    watchdog = RecordingWatchdog()
    owner = threading.Event()
    watchdog.start(owner)
    yield watchdog
    watchdog.stop()


def test_nothing_waits(watchdog: RecordingWatchdog) -> None:
    exchange = tf.function(lambda value: watchdog.done(watchdog.started(value) + 1.0))
    assert float(exchange(tf.constant(1.0))) == 2.0
    assert not watchdog.ended.wait(3 * TIMEOUT_SECONDS)


def test_one_waits_too_long(watchdog: RecordingWatchdog) -> None:
    tf.function(lambda value: watchdog.done(watchdog.started(value)))(tf.constant(1.0))
    start = time.monotonic()
    tf.function(watchdog.started)(tf.constant(1.0))
    assert watchdog.ended.wait(60)
    assert time.monotonic() - start >= TIMEOUT_SECONDS
    [why] = watchdog.reasons
    assert why.startswith("Rank 0 of 1 has waited 1 s for the others in a collective, in the all_reduce.")
    assert why.endswith("allow more time with a_setting=..., 0 for no limit.")


def test_others_are_done_while_one_waits(watchdog: RecordingWatchdog) -> None:
    tf.function(watchdog.started)(tf.constant(1.0))
    exchange = tf.function(lambda value: watchdog.done(watchdog.started(value)))
    start = time.monotonic()
    while time.monotonic() - start < 3 * TIMEOUT_SECONDS:
        exchange(tf.constant(1.0))
        time.sleep(0.02)
        assert not watchdog.ended.is_set()
    assert watchdog.ended.wait(60)


def test_counts_in_loops_branches_and_gradients(watchdog: RecordingWatchdog) -> None:
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
    assert not watchdog.ended.wait(3 * TIMEOUT_SECONDS)


def test_after_its_end_it_looks_no_more(watchdog: RecordingWatchdog) -> None:
    watchdog.stop()
    tf.function(watchdog.started)(tf.constant(1.0))
    assert not watchdog.ended.wait(2 * TIMEOUT_SECONDS)
