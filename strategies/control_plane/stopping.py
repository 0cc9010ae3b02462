"""The agreement on the step after which all processes stop, when one of them wants to.

A process that stopped alone would leave the others in the middle of the next step, for which they need it. So it asks
first, apart from the steps, which cost nothing more as long as nobody asks. Every process answers which step it has
begun, and begins no other before all have answered. All of them stop after the last step that any has begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from strategies.control_plane.key_value_store import KeyValueStore


class Stops:
    """The part of one process in the agreement on the last step.

    Args:
        store: the key-value store of the job.
        wait: waits until a condition holds, or raises an error with the reason why it never will.
    """

    def __init__(self, store: KeyValueStore, wait: Callable[[Callable[[], bool], str], None]) -> None:
        self._store = store
        self._wait = wait
        self._lock = threading.Lock()
        # The number of this training in the process, and the number of the step that it has begun.
        self._training = 0
        self._begun = 0
        self._has_answered = False
        store.listen(self._on_post)

    def begin(self) -> None:
        """Notes that a training begins its first step. All processes call it."""
        with self._lock:
            self._training += 1
            self._begun = 1
            self._has_answered = False
        if self._store.read(self._asked()):
            self._answer()

    def after_step(self, reason: str = "") -> str:
        """Notes the end of a step; returns why all processes stop after it, empty if they continue.

        Args:
            reason: why this process wants to stop; empty if it does not.

        Raises:
            DistributedError: a process does not answer.
        """
        with self._lock:
            if not self._has_answered and not reason:
                self._begun += 1
                return ""
        if reason and not self._store.read(self._asked()):
            self._store.post(self._asked(), reason)
        self._answer()
        answers, size = f"{self._asked()}: begun", self._store.world_size
        self._wait(lambda: len(self._store.read(answers)) == size, "step after which to stop")
        last = max(int(text) for text in self._store.read(answers).values())
        with self._lock:
            if self._begun < last:
                self._begun += 1
                return ""
        asked = self._store.read(self._asked())
        return asked[min(asked)]

    def _asked(self) -> str:
        return f"stop training {self._training}"

    def _answer(self) -> None:
        with self._lock:
            if self._has_answered:
                return
            self._has_answered = True
            begun = self._begun
        self._store.post(f"{self._asked()}: begun", str(begun))

    def _on_post(self, key: str, rank: int, text: str) -> None:
        """Answers a question at once, on the store's thread: the main thread may be in a step."""
        if key == self._asked():
            self._answer()
