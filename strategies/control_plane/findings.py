"""The reasons for which a process waits in vain, from what all processes have posted; every process finds the same."""

from __future__ import annotations

import time
from collections.abc import Callable

from strategies.control_plane import keys, verdict
from strategies.control_plane.board import Board
from strategies.control_plane.waits import Wait, can_go_on, from_text, lack_members

# Posts of all have to stand for this long before they are believed: a message may be on its way.
_SECONDS_TO_STAND = 1.0
# Longer, and asked for twice, where it is not the end of a process that tells: one may have paused behind a wait.
_SECONDS_UNTIL_DIVERGED = 3.0
_SECONDS_BETWEEN_QUESTIONS = 2.0
# For answers of the others: their Python may be busy.
_SECONDS_TO_ANSWER = 3.0
# A process that failed in Python may be about to end, or has handled the error and goes on.
_SECONDS_FOR_FAILED = 30.0


class Findings:
    """Finds on the board the collectives that cannot come to an end.

    Args:
        board: joins the processes.
        position: says where this process is in its program.
    """

    def __init__(self, board: Board, position: Callable[[], str]) -> None:
        self._board, self._position = board, position
        #: The last posts, the time since which they stand, and that at which all had answered meanwhile.
        self._seen: tuple[object, float, float | None] = (None, 0.0, None)

    def found(self) -> str | None:
        """Returns the reason for which what this process waits for cannot come to an end, if there is one.

        Call it again and again while waiting.
        """
        board = self._board
        if told := board.read(keys.VERDICT):
            return told[min(told)]
        waits, left, failed = posted = self._posted()
        if not waits.get(board.rank):
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
        elif not can_go_on(waits, board.world_size):
            # One process asks, for all.
            if board.rank == 0 and stood >= _SECONDS_UNTIL_DIVERGED and self._is_confirmed():
                found = verdict.diverged(waits, board.read(keys.POSITION))
        elif (lacking := lack_members(waits, failed)) and stood >= _SECONDS_FOR_FAILED:
            gone = next(rank for rank in failed if any(rank in wait.members for wait in lacking.values()))
            found = verdict.deserted(gone, failed[gone], waits, board.read(keys.POSITION))
        if found:
            self.conclude(found)
        return found

    def conclude(self, text: str) -> None:
        """Tells the others why what they wait for does not come to an end."""
        self._board.post(keys.VERDICT, text)

    def absent(self, seconds: float) -> str:
        """Returns who did not come to what this process has waited for, and where they are; tells it to the others."""
        if found := self.found():
            return found
        where, silent = self._asked(_SECONDS_TO_ANSWER)
        waits = {rank: own for rank, own in self._waits().items() if rank in where}
        found = verdict.absent(waits, where, silent, seconds)
        self.conclude(found)
        return found

    def silent(self, timeout_seconds: float | None) -> str | None:
        """Returns which processes do not answer within a time (None: any), and have not left; None if all do."""
        _, silent = self._asked(timeout_seconds)
        return verdict.silent(silent) if silent else None

    def explanation(self, timeout_seconds: float) -> str | None:
        """Returns why a collective has failed here, as far as the others tell within a time; None if they do not."""
        board = self._board

        def known() -> bool:
            return bool(board.left() or self._failed() or board.read(keys.VERDICT))

        board.wait(known, timeout_seconds)
        if told := board.read(keys.VERDICT):
            return told[min(told)]
        # The first to leave is the cause: the errors of others follow from it.
        found = next((self._deserted(rank, self._waits()) for rank in board.left()), None)
        for rank, text in self._failed().items():
            found = found or verdict.deserted(rank, text, self._waits(), board.read(keys.POSITION))
        if found is None:
            _, silent = self._asked(_SECONDS_TO_ANSWER)
            found = verdict.silent(silent) if silent else None
        if found is not None:
            self.conclude(found)
        return found

    def causes_elsewhere(self) -> list[str]:
        """Returns what has ended other processes, the first cause first; at once."""
        board = self._board
        others = {rank: text or verdict.LOST for rank, text in board.left().items()} | self._failed()
        told = board.read(keys.VERDICT)
        return [told[min(told)]] if told else [f"Rank {rank} {how}." for rank, how in others.items()]

    def _waits(self) -> dict[int, list[Wait]]:
        return {rank: from_text(text) for rank, text in self._board.read(keys.WAITS).items()}

    def _failed(self) -> dict[int, str]:
        """The errors of other processes."""
        posted = self._board.read(keys.FAILED).items()
        return {rank: text for rank, text in posted if text and rank != self._board.rank}

    def _is_confirmed(self) -> bool:
        """True if all processes have answered twice, with a time between, while they waited for the same and were idle.

        One that was stopped behind a wait, and runs again, answers before it has looked at what it waits for now.
        """
        board = self._board
        snapshot, since, answered = self._seen
        if answered is not None and time.monotonic() - answered < _SECONDS_BETWEEN_QUESTIONS:
            return False
        _, silent = self._asked(_SECONDS_TO_ANSWER)
        if silent or any(board.read(keys.BUSY).values()):
            # Anew: one is stopped, or computes what another waits for.
            self._seen = (snapshot, time.monotonic(), None)
            return False
        if answered is None:
            self._seen = (snapshot, since, time.monotonic())
            return False
        return self._posted() == snapshot

    def _posted(self) -> tuple[dict[int, list[Wait]], tuple[int, ...], dict[int, str]]:
        """Returns waits, ranks that have left, and errors by rank: they have to stand for a while to be believed."""
        waits = self._waits()
        # Of those that wait, an error is handled.
        failed = {rank: text for rank, text in self._failed().items() if not waits.get(rank)}
        return waits, tuple(self._board.left()), failed

    def _asked(self, timeout_seconds: float | None) -> tuple[dict[int, str], list[int]]:
        """Returns where the processes are, by rank, and those that do not answer although they have not left."""
        board = self._board
        question = f"{board.rank} {time.monotonic()}"
        answer = keys.answer_to(question)
        board.post(keys.QUESTION, question)
        board.post(answer, self._position())

        def all_answered() -> bool:
            return len({*board.read(answer), *board.left()}) == board.world_size

        board.wait(all_answered, timeout_seconds)
        where = board.read(answer)
        return where, [rank for rank in range(board.world_size) if rank not in where and rank not in board.left()]

    def _deserted(self, rank: int, waits: dict[int, list[Wait]]) -> str:
        board = self._board
        farewell = board.left().get(rank) or board.read(keys.FAILED).get(rank, "")
        return verdict.deserted(rank, farewell, waits, board.read(keys.POSITION))
