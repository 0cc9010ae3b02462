"""SIGTERM to a process of a job: it ends at once with an exit reason, or saves a checkpoint first, with the others.

TensorFlow's runtime takes over the signal once several processes have joined, and does not end the process (2.21). And
Python runs handlers in its main thread only, which may be waiting in a collective. So a separate thread reads the
signals.

A child made by ``fork``, such as a worker of ``multiprocessing.Pool``, inherits the handler and the pipe. It drops
both: its end is not that of this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

#: Takes the number of finished steps of the epoch in this call of `fit`; saves a checkpoint, and ends the process.
Saver = Callable[[int], None]


class Preemption:
    """The requests of the system or a scheduler, by SIGTERM, that this process end; one per process: see `current`.

    Attributes:
        is_asked: True once the process was asked to end, and has to save a checkpoint first.
    """

    def __init__(self) -> None:
        self._leave: Callable[[str], None] = lambda reason: None
        self._saver: Saver | None = None
        self._is_installed = False
        self._first = threading.Lock()
        self._pipe = (-1, -1)
        # The signal mask of each thread before it forked.
        self._forking = threading.local()
        self.is_asked = False

    def leave_by(self, leave: Callable[[str], None]) -> None:
        """Registers `leave`, which tells the other processes that this one ends, and why."""
        self._leave = leave

    @property
    def saver(self) -> Saver | None:
        """The function that saves a checkpoint before the process ends; None: a request ends it at once.

        Setting None also ends the process if it was asked to end before.
        """
        return self._saver

    @saver.setter
    def saver(self, saver: Saver | None) -> None:
        self._saver = saver
        if saver is not None:
            self.install_handler()
        self.end_if_asked()

    def drop_saver(self) -> None:
        """Removes the saver and nothing more: an error has ended the training, and may itself end the process."""
        self._saver = None

    def end_if_asked(self) -> None:
        """Ends the process if it was asked to end while it had a saver, and the saver has been removed since."""
        if self.is_asked and self._saver is None:
            self._take()

    def install_handler(self) -> None:
        """Handles SIGTERM from now on, unless the program handles it, or this is not the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_installed or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._is_installed = True
        self._pipe = reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before >= 0:
            # Another event loop has the wakeup descriptor: then only Python's handler gets the signal.
            signal.set_wakeup_fd(before)
        else:
            threading.Thread(target=self._listen, args=[reader], name="strategies-signals", daemon=True).start()
        signal.signal(signal.SIGTERM, self._handle)
        os.register_at_fork(
            before=self._hold_signal, after_in_parent=self._release_signal, after_in_child=self._become_child
        )

    def _hold_signal(self) -> None:
        # Until the child has closed its ends of the pipe, a signal to the child would arrive in this process.
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _become_child(self) -> None:
        """Drops the job in a forked child: SIGTERM then ends the child only."""
        self._leave, self._saver, self.is_asked, self._is_installed = (lambda reason: None), None, False, False
        self._first = threading.Lock()
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        other = signal.set_wakeup_fd(-1)
        if other not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(other)
        for end in self._pipe:
            os.close(end)
        self._release_signal()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._take()

    def _listen(self, reader: int) -> None:
        while True:
            for signum in os.read(reader, 64):
                if signum == signal.SIGTERM:
                    self._take()

    def _take(self) -> None:
        # Called twice for one signal, by the handler and by the thread, and again for every further signal.
        if self._saver is not None:
            self.is_asked = True
            return
        if not self._first.acquire(blocking=False):
            # The other call is telling the other processes, and ends this process after that.
            return
        self._leave("was ended by SIGTERM")
        # Not by Python's `signal`: it sets handlers in the main thread only, which may be waiting in a collective.
        ctypes.CDLL(None).signal(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)


_instance = Preemption()


def current() -> Preemption:
    """Returns the instance of this process, which has one signal handler, however many strategies it makes."""
    return _instance
