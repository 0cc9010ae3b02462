"""Threads started in the context get a scheduling policy that preempts no other thread. Horovod is not started."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from strategies.collectives.horovod.runtime import network_threads_yield

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this policy")


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def start(end: threading.Event) -> int:
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    assert thread.native_id is not None
    return thread.native_id


def test_new_threads_yield_but_for_the_first(end: threading.Event) -> None:
    before = start(end)
    with network_threads_yield(num_others=1):
        started = [start(end) for _ in range(3)]
    after = start(end)
    policies = [os.sched_getscheduler(thread) for thread in (before, *started, after)]
    other, batch = os.SCHED_OTHER, os.SCHED_BATCH
    assert policies == [other, other, batch, batch, other]


def test_threads_that_are_gone_do_no_harm() -> None:
    with network_threads_yield():
        ended = threading.Event()
        start(ended)
        ended.set()
