"""The number of finished steps, as Keras' callbacks can know it."""

from __future__ import annotations

from typing import Any


def finished_steps(params: dict[str, Any] | None, batch: int) -> int:
    """Returns the finished steps of an epoch, at the end of a batch or of an execution of several steps.

    Keras counts the last execution of an epoch as a whole one, also if the epoch ends in it.

    Args:
        params: those of the callback.
        batch: the argument of `on_train_batch_end`.
    """
    return min(batch + 1, (params or {}).get("steps") or batch + 1)
