"""This process as a member of its job: what it posts for the others, and what it knows of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import textwrap
import threading
import time
from collections.abc import Callable, Sequence

from strategies.control_plane import keys, preemption
from strategies.control_plane.findings import Findings
from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.position import Position, line_of_program
from strategies.control_plane.stopping import Stops
from strategies.control_plane.stragglers import WaitingShares
from strategies.control_plane.waits import Wait, to_text
from strategies.topology.rank_end import leave_reason

#: After this time without progress a process posts what it waits for.
SECONDS_UNTIL_POSTED = 2.0
_SECONDS_BETWEEN_LOOKS = 0.5
# Collectives that run this soon after a failure do not show that the program continues.
_SECONDS_AFTER_FAILURE = 2.0

# The most characters of an error in a message to the others.
_MOST_CHARACTERS = 600


class DistributedError(RuntimeError):
    """A collective cannot complete: a rank has left, runs another program, or did not join in time.

    The message names the rank, where it was, and the collective. The strategy cannot be used any more.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        try:
            model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
        except strategies.DistributedError as error:
            print("not this rank's fault:", error)
            raise
    """

    __module__ = "strategies"


class Member:
    """This process in its job.

    Args:
        rank: this process' rank.
        world_size: the number of processes.
        store: the key-value store of the job; None if it has none: each process then knows of itself only.
        timeout_seconds: the limit of waits for other processes; 0: no limit.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: KeyValueStore | None = None,
        timeout_seconds: float = 0.0,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._position = Position()
        self._lock = threading.Lock()
        self._waits: dict[str, list[Wait]] = {}
        self._busy: dict[str, bool] = {}
        self._reason = self._ended = ""
        self._failed_at = 0.0
        self._last_exchange = ""
        self._num_strategies = self._num_barriers = 0
        #: The agreement on the last step of a training; None without a key-value store.
        self.stops: Stops | None = None
        #: The share of its time in which this process waits in collectives.
        self.shares = WaitingShares()
        #: The handling of SIGTERM to this process.
        self.preemption = preemption.current()
        self._findings = None if store is None else Findings(store, lambda: str(self._position))
        if store is not None:
            self.preemption.leave_by(self._leave_by_signal)
            self.stops = Stops(store, self._wait_for)
            store.listen(self._on_post)
            atexit.register(self.leave)

    @property
    def store(self) -> KeyValueStore | None:
        """The key-value store of the job; None if it has none."""
        return self._store

    @property
    def position(self) -> Position:
        """The position of this process in its program."""
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._position = position

    # ---- what this process posts

    def agree(self, text: str) -> list[str]:
        """Exchanges a text for a new strategy, like :meth:`exchange`; the strategies of a process are numbered."""
        self._num_strategies += 1
        return self.exchange(f"strategy {self._num_strategies}", text)

    def exchange(self, name: str, text: str) -> list[str]:
        """Exchanges texts under a name that is used once; returns them by rank. All processes call it.

        Args:
            name: the same on all processes.
            text: the text of this process.

        Raises:
            DistributedError: a process has left, is elsewhere in its program, or did not post in time.
        """
        store = self._required()
        key = f"exchange {name}"
        store.post(key, text)
        self._wait_for(lambda: len(store.read(key)) == self.world_size, name)
        texts = store.read(key)
        # All processes have read the last exchange, since they have posted for this one.
        store.forget(self._last_exchange)
        self._last_exchange = key
        return [texts[rank] for rank in range(self.world_size)]

    def _wait_for(self, condition: Callable[[], bool], name: str, what: str = "") -> None:
        """Waits until a condition holds to which all processes contribute."""
        store = self._required()
        began = time.monotonic()
        wait = Wait(f"exchange {name}", tuple(range(self.world_size)), "exchange", what or name)
        try:
            while not store.wait(condition, _SECONDS_BETWEEN_LOOKS):
                waited = time.monotonic() - began
                if waited > SECONDS_UNTIL_POSTED:
                    self.note_waits("store", [wait])
                found = self.found()
                if not found and self.timeout_seconds and waited > self.timeout_seconds:
                    found = self.absent(self.timeout_seconds)
                    found = f"{found} If it was only slow, allow more time with the strategy's timeout_seconds."
                if found:
                    raise self.lost(found)
        finally:
            self.note_waits("store", [])

    def note_waits(self, source: str, waits: Sequence[Wait], *, is_busy: bool = False) -> None:
        """Posts what this process waits for, if that has changed.

        Args:
            source: names the caller; each source replaces its own waits only.
            waits: empty if the process does not wait, or has not waited for long.
            is_busy: True if the process computes meanwhile, and so may still produce what others wait for.
        """
        store = self._store
        # Posted under the lock: of two threads that post at once, the later list must arrive last.
        with self._lock:
            if (self._waits.get(source, []), self._busy.get(source, False)) == (list(waits), is_busy):
                return
            self._waits[source], self._busy[source] = list(waits), is_busy
            if store is not None:
                everything = [wait for each in self._waits.values() for wait in each]
                store.post(keys.BUSY, "yes" if any(self._busy.values()) else "")
                store.post(keys.POSITION, str(self._position))
                store.post(keys.WAITS, to_text(everything))

    def note_failure(self, error: BaseException) -> None:
        """Posts that this process' program has raised an error, which may end the process."""
        how = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"failed with {_in_short(error)}"
        self._reason, self._failed_at = f"{how} {self._position}", time.monotonic()
        if isinstance(error, DistributedError):
            # The cause is in another process, and `lost` has left it for the launcher.
            return
        leave_reason(self.rank, f"Rank {self.rank} {self._reason}.")
        if self._store is not None:
            self._store.post(keys.FAILED, self._reason)

    def wait_for_answers(self, error: SystemExit) -> None:
        """Waits for all processes to answer, before this one ends with exit code 0, which is no failure to a launcher.

        Processes that run find out that this one has left. One that is stopped does not, and if no other process runs,
        nobody would end the job.

        Raises:
            DistributedError: another process does not answer within `timeout_seconds`.
        """
        if error.code not in (None, 0) or self._findings is None:
            return
        if silent := self._findings.silent(self.timeout_seconds or None):
            raise self.lost(f"Rank {self.rank} {self._reason}. {silent}") from error

    def lost(self, reason: str) -> DistributedError:
        """Returns the error of a collective that cannot complete, and leaves the reason for the launcher."""
        leave_reason(self.rank, reason)
        return DistributedError(reason)

    def note_progress(self) -> None:
        """Notes that collectives have started, which shows that a program has handled its error and continues."""
        if self._reason and time.monotonic() - self._failed_at > _SECONDS_AFTER_FAILURE:
            self.forget_failure()

    def forget_failure(self) -> None:
        """Withdraws the error that :meth:`note_failure` posted: the program continues."""
        if self._reason:
            if self._findings is not None:
                self._findings.note_handled(self._reason)
            self._reason = ""
            leave_reason(self.rank, "")
            if self._store is not None:
                self._store.post(keys.FAILED, "")

    def leave(self, reason: str = "") -> None:
        """Posts the exit reason of this process, and closes its connections.

        Args:
            reason: as in "was ended by SIGTERM"; if empty, an error of its program counts, if there was one.
        """
        if reason:
            leave_reason(self.rank, f"Rank {self.rank} {reason} {self._position}.")
        if self._store is not None:
            self._store.close(f"{reason} {self._position}" if reason else self._reason or f"ended {self._position}")

    def _leave_by_signal(self, reason: str) -> None:
        """Leaves after a signal; first prints why others have ended, for which the launcher may end this process.

        `horovodrun` does so before a collective can raise the error in this process, and prints only an exit code for
        the others.
        """
        # If a launcher ends all processes by a signal, none of them is the cause.
        causes = [cause for cause in self._findings.causes_elsewhere() if reason not in cause] if self._findings else []
        if causes:
            line = f"strategies: rank {self.rank} {reason} {self._position}, after this: {causes[0]}\n"
            # Not through Python's stderr: the main thread may hold its lock.
            with contextlib.suppress(OSError):
                os.write(2, line.encode())
        self.leave(reason)

    def barrier(self, name: str) -> None:
        """Barrier: returns when all processes have called it, for example before the first of them ends."""
        if self._store is not None:
            self._num_barriers += 1
            self.exchange(f"{name} {self._num_barriers}", "")

    # ---- what this process knows

    def found(self) -> str | None:
        """Returns the reason why the collective that this process waits for cannot complete; None if none is known.

        All processes find the same reason. Call it repeatedly while waiting.
        """
        return None if self._findings is None else self._findings.found()

    def conclude(self, text: str) -> None:
        """Posts the reason why the collective that the others wait for cannot complete."""
        if self._findings is not None:
            self._findings.conclude(text)

    def note_end(self, reason: str) -> None:
        """Stores the reason why this process has aborted its collectives."""
        self._ended = reason

    def absent(self, seconds: float) -> str | None:
        """Returns the processes that did not join this process' collective, and where they are; posts it for all."""
        return None if self._findings is None else self._findings.absent(seconds)

    def explanation(self, timeout_seconds: float = 2.0) -> str | None:
        """Returns why a collective has failed on this process, if the others post it within a time; else None."""
        if self._ended or self._findings is None:
            return self._ended or None
        return self._findings.explanation(timeout_seconds)

    def _required(self) -> KeyValueStore:
        if self._store is None:
            raise RuntimeError("The processes of this job have no key-value store.")
        return self._store

    def _on_post(self, key: str, rank: int, text: str) -> None:
        """Answers the question of a process that waits, on the store's thread: posts where this process is."""
        if key == keys.QUESTION and self._store is not None:
            self._store.post(keys.answer_to(text), f"{self._position}{line_of_program()}")


def _in_short(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    text = textwrap.shorten(text, _MOST_CHARACTERS, placeholder=" ...")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
