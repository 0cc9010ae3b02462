"""The reason why a collective cannot complete, from the posts of all processes; every process finds the same reason."""

from __future__ import annotations

import time
from collections.abc import Callable

from strategies.control_plane import keys, verdict
from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.waits import Wait, can_go_on, from_text, lack_members

# The posts of all processes must be unchanged for this time before they are believed: a message may be on its way.
_SECONDS_TO_STAND = 1.0
# If no process has left, the posts must be unchanged for longer, and are confirmed by two questions to all: a process
# may have been paused right after a wait.
_SECONDS_UNTIL_DIVERGED = 3.0
_SECONDS_BETWEEN_QUESTIONS = 2.0
# The limit of the wait for answers of the others, whose Python may be busy.
_SECONDS_TO_ANSWER = 3.0
# A process that raised an error may be about to end, or may have handled the error and continue.
_SECONDS_FOR_FAILED = 30.0


class Findings:
    """Finds collectives that cannot complete, from the posts in the key-value store.

    Args:
        store: the key-value store of the job.
        position: returns where this process is in its program.
    """

    def __init__(self, store: KeyValueStore, position: Callable[[], str]) -> None:
        self._store, self._position = store, position
        #: The last posts, the time since which they are unchanged, and the time at which all have answered meanwhile.
        self._seen: tuple[object, float, float | None] = (None, 0.0, None)
        #: The last error that this process has raised and its program has handled.
        self._handled = ""

    def note_handled(self, error: str) -> None:
        """Notes that this process' program has handled an error; `error` is the text that was posted of it.

        Another process that has raised the same error at the same position runs the same program, and handles it too,
        even if it needs long to continue: no collective is given up for it. If it ends instead, it leaves.
        """
        self._handled = error

    def found(self) -> str | None:
        """Returns the reason why the collective that this process waits for cannot complete; None if none is known.

        Call it repeatedly while waiting.
        """
        store = self._store
        if verdicts := store.read(keys.VERDICT):
            return verdicts[min(verdicts)]
        waits, left, failed = posted = self._posted()
        if not waits.get(store.rank):
            return None
        if posted != self._seen[0]:
            self._seen = (posted, time.monotonic(), None)
            return None
        stood = time.monotonic() - self._seen[1]
        found = None
        if lacking := lack_members(waits, left):
            if stood >= _SECONDS_TO_STAND:
                gone = next(rank for rank in left if any(rank in wait.members for wait in lacking.values()))
                found = self._deserted(gone, waits)
        elif not can_go_on(waits, store.world_size):
            # Only rank 0 asks, for all processes.
            if store.rank == 0 and stood >= _SECONDS_UNTIL_DIVERGED and self._is_confirmed():
                found = verdict.diverged(waits, store.read(keys.POSITION))
        elif (lacking := lack_members(waits, failed)) and stood >= _SECONDS_FOR_FAILED:
            gone = next(rank for rank in failed if any(rank in wait.members for wait in lacking.values()))
            found = verdict.deserted(gone, failed[gone], waits, store.read(keys.POSITION))
        if found:
            self.conclude(found)
        return found

    def conclude(self, text: str) -> None:
        """Posts the reason why the collective that the others wait for cannot complete."""
        self._store.post(keys.VERDICT, text)

    def absent(self, seconds: float) -> str:
        """Returns the processes that did not join this process' collective, and where they are; posts it for all."""
        if found := self.found():
            return found
        where, silent = self._asked(_SECONDS_TO_ANSWER)
        waits = {rank: own for rank, own in self._waits().items() if rank in where}
        found = verdict.absent(waits, where, silent, seconds)
        self.conclude(found)
        return found

    def silent(self, timeout_seconds: float | None) -> str | None:
        """Returns a message on processes that do not answer in time (None: no limit) and have not left; else None."""
        _, silent = self._asked(timeout_seconds)
        return verdict.silent(silent) if silent else None

    def explanation(self, timeout_seconds: float) -> str | None:
        """Returns why a collective has failed on this process, if the others post it within a time; else None."""
        store = self._store

        def known() -> bool:
            return bool(store.left() or self._failed() or store.read(keys.VERDICT))

        store.wait(known, timeout_seconds)
        if verdicts := store.read(keys.VERDICT):
            return verdicts[min(verdicts)]
        # The first process to leave is the cause: the errors of others follow from that.
        found = next((self._deserted(rank, self._waits()) for rank in store.left()), None)
        for rank, text in self._failed().items():
            found = found or verdict.deserted(rank, text, self._waits(), store.read(keys.POSITION))
        if found is None:
            _, silent = self._asked(_SECONDS_TO_ANSWER)
            found = verdict.silent(silent) if silent else None
        if found is not None:
            self.conclude(found)
        return found

    def causes_elsewhere(self) -> list[str]:
        """Returns the reasons for which other processes have ended, the first one first; does not wait."""
        store = self._store
        others = {rank: text or verdict.LOST for rank, text in store.left().items()} | self._failed()
        verdicts = store.read(keys.VERDICT)
        return [verdicts[min(verdicts)]] if verdicts else [f"Rank {rank} {how}." for rank, how in others.items()]

    def _waits(self) -> dict[int, list[Wait]]:
        return {rank: from_text(text) for rank, text in self._store.read(keys.WAITS).items()}

    def _failed(self) -> dict[int, str]:
        """Returns the errors of other processes, by rank, without one that this process has handled as well."""
        posted = self._store.read(keys.FAILED).items()
        return {rank: text for rank, text in posted if rank != self._store.rank and text not in ("", self._handled)}

    def _is_confirmed(self) -> bool:
        """True if all processes answered twice, some time apart, while their waits were the same and none was busy.

        One answer is not enough: a process that was stopped after a wait answers before it has updated its waits.
        """
        store = self._store
        snapshot, since, answered = self._seen
        if answered is not None and time.monotonic() - answered < _SECONDS_BETWEEN_QUESTIONS:
            return False
        _, silent = self._asked(_SECONDS_TO_ANSWER)
        if silent or any(store.read(keys.BUSY).values()):
            # Start again: a process is stopped, or computes what another waits for.
            self._seen = (snapshot, time.monotonic(), None)
            return False
        if answered is None:
            self._seen = (snapshot, since, time.monotonic())
            return False
        return self._posted() == snapshot

    def _posted(self) -> tuple[dict[int, list[Wait]], tuple[int, ...], dict[int, str]]:
        """Returns the posted waits by rank, the ranks that have left, and the posted errors by rank."""
        waits = self._waits()
        # A process that waits again has handled its error.
        failed = {rank: text for rank, text in self._failed().items() if not waits.get(rank)}
        return waits, tuple(self._store.left()), failed

    def _asked(self, timeout_seconds: float | None) -> tuple[dict[int, str], list[int]]:
        """Asks where all processes are; returns the answers by rank, and the ranks that neither answered nor left."""
        store = self._store
        question = f"{store.rank} {time.monotonic()}"
        answer = keys.answer_to(question)
        store.post(keys.QUESTION, question)
        store.post(answer, self._position())

        def all_answered() -> bool:
            return len({*store.read(answer), *store.left()}) == store.world_size

        store.wait(all_answered, timeout_seconds)
        where = store.read(answer)
        return where, [rank for rank in range(store.world_size) if rank not in where and rank not in store.left()]

    def _deserted(self, rank: int, waits: dict[int, list[Wait]]) -> str:
        store = self._store
        exit_reason = store.left().get(rank) or store.read(keys.FAILED).get(rank, "")
        return verdict.deserted(rank, exit_reason, waits, store.read(keys.POSITION))
