"""A timeout for collectives: aborts those whose peers do not take part.

TensorFlow's collective ops have a timeout, but each running op needs two threads for it, which sleep until the timeout:
with 10 minutes and 50 steps a second they exhaust the limits of a system within minutes (TensorFlow 2.21,
`Env::SchedClosureAfter`). Horovod's ops have none, and its stall check did not end a wait (0.28.1, Gloo). So the ledger
counts what starts and ends, and one thread reads it: if a collective is pending and none has ended within the timeout,
or the other processes report that it never will, all collectives of the process are aborted.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from strategies.collectives.ledger import Ledger
from strategies.control_plane import Member
from strategies.control_plane.member import SECONDS_UNTIL_POSTED

_SECONDS_BETWEEN_LOOKS = 1.0
# Horovod's own thread takes up to a tenth of a core while it waits.
_BUSY_SHARE = 0.2


class Watchdog:
    """Watches the pending collectives of this process, and aborts them when none makes progress.

    Args:
        who: names this process in the error, as in "rank 0 of 2".
        timeout_seconds: how long a collective may be pending while no other finishes; 0 for no limit: then only a
            report of the other processes ends a wait.
        end: aborts all collectives of this process; takes the error message.
        setting: the setting that allows more time, for the error message.
        member: this process in its job, which receives the others' reports; None if there are none.

    Attributes:
        ledger: the collectives that are watched.

    Raises:
        ValueError: a negative timeout.
    """

    def __init__(
        self,
        who: str,
        timeout_seconds: float,
        end: Callable[[str], None],
        setting: str,
        member: Member | None = None,
    ) -> None:
        if timeout_seconds < 0:
            raise ValueError(f"timeout_seconds must be 0 (never) or more. Received: timeout_seconds={timeout_seconds}.")
        self._who, self._timeout_seconds = who, timeout_seconds
        self._end, self._setting, self._member = end, setting, member
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._source = f"watchdog {id(self)}"
        self._was_pending = False
        # Without a time limit, collectives that can never finish are still aborted if there is a member.
        self.ledger = Ledger(is_kept=bool(timeout_seconds) or member is not None)

    def start(self, owner: object) -> None:
        """Starts the thread. It stops with `owner`, and before the interpreter exits: else TensorFlow would crash."""
        if not self._timeout_seconds and self._member is None:
            return
        weakref.finalize(owner, self.stop)
        if self._member is not None:
            self._member.shares.sample_from(self._source, self._is_pending, lambda: not self.ledger.is_on_gpus)
        self._thread = threading.Thread(target=self._look, name="strategies-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._stop.set()
        if self._member is not None:
            self._member.shares.sample_from(self._source, None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_BETWEEN_LOOKS)

    def _look(self) -> None:
        seen: tuple[int, int] | None = None
        since = time.monotonic()
        work = _Work()
        pause = min(_SECONDS_BETWEEN_LOOKS, self._timeout_seconds / 5 or _SECONDS_BETWEEN_LOOKS)
        while not self._stop.wait(pause):
            counts = self.ledger.counts()
            now, is_busy = time.monotonic(), work.is_busy()
            if self._member is not None:
                self._was_pending = counts[0] > counts[1]
                self._member.shares.note(self._source, self._was_pending)
            if counts[0] == counts[1] or counts != seen:
                if self._member is not None:
                    self._member.note_waits(self._source, [])
                    if seen is not None and counts[0] > seen[0]:
                        self._member.note_progress()
                seen, since = counts, now
            elif reason := self._reason(now - since, is_busy):
                if self._member is not None:
                    self._member.note_end(reason)
                self._end(reason)
                return

    def _is_pending(self) -> bool:
        """Returns True if a collective is pending; on GPUs, if one was at the last look, since counters are copied."""
        if self.ledger.is_on_gpus:
            return self._was_pending
        started, done = self.ledger.counts()
        return started > done

    def _reason(self, waited: float, is_busy: bool) -> str | None:
        """Returns the reason to abort the pending collectives; None to keep waiting."""
        found = None
        if self._member is not None and waited >= SECONDS_UNTIL_POSTED:
            self._member.note_waits(self._source, self.ledger.pending(), is_busy=is_busy)
            found = self._member.found()
        if found or not self._timeout_seconds or waited < self._timeout_seconds:
            return found
        about = self._member.absent(self._timeout_seconds) if self._member is not None else None
        pending = self.ledger.pending()
        unknown = (
            f"{self._who} has waited {self._timeout_seconds:g} s for the others in a collective"
            f"{f', in {pending[0]}' if pending else ''}. At least one of them has failed, hangs, is too slow or runs "
            "another program: see its own output."
        )
        return f"{about or unknown} If it was only slow, allow more time with {self._setting}, 0 for no limit."


class _Work:
    """The share of a core that this process has used since the last call.

    A pending collective does not mean that the process waits: it may compute something else meanwhile.
    """

    def __init__(self) -> None:
        self._last = time.monotonic(), time.process_time()

    def is_busy(self) -> bool:
        before, self._last = self._last, (time.monotonic(), time.process_time())
        return self._last[1] - before[1] > _BUSY_SHARE * (self._last[0] - before[0])
