"""SIGTERM to a process of a job: it ends at once and says so, or saves a checkpoint first, together with the others.

TensorFlow's runtime takes the signal for itself once several processes have joined, and goes on (2.21). And Python
handles signals in its main thread only, which may be waiting in a collective. So a thread of its own hears of them.

A child made by ``fork``, as a worker of ``multiprocessing.Pool`` is, inherits handler and pipe. It lets go of both: its
end is not that of this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

#: Saves a checkpoint after so many steps of the epoch in this call of `fit`, and ends the process.
Saver = Callable[[int], None]


class Preemption:
    """The requests of the system, or of a scheduler, that this process end. There is one: see `of_process`.

    Attributes:
        is_asked: True once the process was asked to end, and is to save a checkpoint first.
    """

    def __init__(self) -> None:
        self._leave: Callable[[str], None] = lambda reason: None
        self._saver: Saver | None = None
        self._is_heard = False
        self._first = threading.Lock()
        self._pipe = (-1, -1)
        # By thread: the mask of signals before it forked.
        self._forking = threading.local()
        self.is_asked = False

    def leave_by(self, leave: Callable[[str], None]) -> None:
        """Has `leave` tell the other processes that this one ends, and why."""
        self._leave = leave

    @property
    def saver(self) -> Saver | None:
        """Saves a checkpoint before the process ends; None if it ends at once, also if it was asked before."""
        return self._saver

    @saver.setter
    def saver(self, saver: Saver | None) -> None:
        self._saver = saver
        if saver is not None:
            self.hear()
        self.end_if_asked()

    def drop_saver(self) -> None:
        """Has nothing saved any more: an error has ended the training, and may end the process by itself."""
        self._saver = None

    def end_if_asked(self) -> None:
        """Ends the process if it was asked to while there was a saver, which is gone."""
        if self.is_asked and self._saver is None:
            self._take()

    def hear(self) -> None:
        """Hears of the signal from now on; not where the program does, nor outside of the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_heard or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._is_heard = True
        self._pipe = reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before >= 0:
            # Another loop waits for signals: then this process hears of it when Python does.
            signal.set_wakeup_fd(before)
        else:
            threading.Thread(target=self._listen, args=[reader], name="strategies-signals", daemon=True).start()
        signal.signal(signal.SIGTERM, self._handle)
        os.register_at_fork(
            before=self._hold_signal, after_in_parent=self._release_signal, after_in_child=self._become_child
        )

    def _hold_signal(self) -> None:
        # Until the child has let go of the pipe, a signal to it would arrive here.
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _become_child(self) -> None:
        """Forgets the job, in a child that was forked: SIGTERM ends the child, and nobody else."""
        self._leave, self._saver, self.is_asked, self._is_heard = (lambda reason: None), None, False, False
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
        # Twice for one signal, here and there, and again for each one more.
        if self._saver is not None:
            self.is_asked = True
            return
        if not self._first.acquire(blocking=False):
            # The other one is telling it to the others, and ends the process behind that.
            return
        self._leave("was ended by SIGTERM")
        # Python lets only the main thread set handlers, which may be waiting in a collective.
        ctypes.CDLL(None).signal(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)


_of_process = Preemption()


def of_process() -> Preemption:
    """Returns the one of this process: it has one handler of signals, however many strategies it makes."""
    return _of_process
