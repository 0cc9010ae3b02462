"""The watchdog: it ends collectives that wait too long, and nothing else.

The effect of ending them is tested by `test_tf_runtime` and between processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

from strategies.collectives.watchdog import Watch

TIMEOUT_SECONDS = 1.0


class RecordingWatch(Watch):
    """Notes that it would end the collectives."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.said: list[str] = []
        super().__init__("Rank 0 of 1", TIMEOUT_SECONDS, self._note, "a_setting=...")

    def _note(self, why: str) -> None:
        self.said.append(why)
        self.ended.set()


@pytest.fixture
def watch() -> Iterator[RecordingWatch]:
    watch = RecordingWatch()
    owner = threading.Event()
    watch.start(owner)
    yield watch
    watch.stop()


def test_nothing_waits(watch: RecordingWatch) -> None:
    exchange = tf.function(lambda value: watch.is_done(watch.waits(value) + 1.0))
    assert float(exchange(tf.constant(1.0))) == 2.0
    assert not watch.ended.wait(3 * TIMEOUT_SECONDS)


def test_one_waits_too_long(watch: RecordingWatch) -> None:
    tf.function(lambda value: watch.is_done(watch.waits(value)))(tf.constant(1.0))
    start = time.monotonic()
    tf.function(watch.waits)(tf.constant(1.0))
    assert watch.ended.wait(60)
    assert time.monotonic() - start >= TIMEOUT_SECONDS
    [why] = watch.said
    assert why.startswith("Rank 0 of 1 has waited 1 s for the others in a collective.")
    assert why.endswith("allow more with a_setting=..., 0 for no limit.")


def test_others_are_done_while_one_waits(watch: RecordingWatch) -> None:
    tf.function(watch.waits)(tf.constant(1.0))
    exchange = tf.function(lambda value: watch.is_done(watch.waits(value)))
    start = time.monotonic()
    while time.monotonic() - start < 3 * TIMEOUT_SECONDS:
        exchange(tf.constant(1.0))
        time.sleep(0.02)
        assert not watch.ended.is_set()
    assert watch.ended.wait(60)


def test_counts_in_loops_branches_and_gradients(watch: RecordingWatch) -> None:
    @tf.custom_gradient
    def exchange(value: tf.Tensor) -> object:
        return watch.is_done(watch.waits(value)), lambda upstream: watch.is_done(watch.waits(upstream))

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
    assert not watch.ended.wait(3 * TIMEOUT_SECONDS)


def test_after_its_end_it_looks_no_more(watch: RecordingWatch) -> None:
    watch.stop()
    tf.function(watch.waits)(tf.constant(1.0))
    assert not watch.ended.wait(2 * TIMEOUT_SECONDS)
