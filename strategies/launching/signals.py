"""Signals to the launcher, queued for its main loop. Standard library only."""

import contextlib
import math
import os
import select
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self

#: Signals that request termination.
STOPPING = (signal.SIGINT, signal.SIGTERM)
#: Signals that are forwarded to the processes.
PASSED_ON = (*STOPPING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """A context manager that queues signals to the launcher, and exits of its processes, for `wait`."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._writer_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A signal that is ignored, as under nohup, stays ignored, in the launcher and in its processes.
        self._before: dict[signal.Signals, Any] = {
            signum: signal.signal(signum, _keep)
            for signum in (signal.SIGCHLD, *PASSED_ON)
            if signum is signal.SIGCHLD or signal.getsignal(signum) is not signal.SIG_IGN
        }
        return self

    def wait(self, timeout_seconds: float | None, interests: Mapping[int, int]) -> list[int]:
        """Returns the signals received, SIGCHLD included, after `timeout_seconds` at the latest.

        It returns earlier when an event of `interests` happens: file descriptors and events of `select.poll`.
        """
        # Unlike select, poll has no limit on the numbers of file descriptors.
        poll = select.poll()
        for file, events in ({self._reader: select.POLLIN} | dict(interests)).items():
            poll.register(file, events)
        poll.poll(None if timeout_seconds is None else math.ceil(timeout_seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self._reader, 1 << 10))
        return []

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._writer_before)
        os.close(self._reader)
        os.close(self._writer)


def _keep(signum: int, frame: FrameType | None) -> None:
    """Does nothing: Python writes signals that have a Python handler to the wakeup file descriptor."""


def signal_name(signum: int) -> str:
    """Returns the name and number of a signal, as in "SIGTERM (15)"."""
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(signum).name} ({signum})"
    return str(signum)
