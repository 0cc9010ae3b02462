"""Measures contenders in turn, so that changes of the machine affect all of them alike."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from harness.workers import Contender, Workers

_log = logging.getLogger(__name__)


def measure_in_turn(
    contenders: Sequence[Contender],
    num_rounds: int,
    timeout_seconds: float,
    combine: Callable[[Sequence[float]], float] = sum,
) -> dict[str, list[float]]:
    """Measures every contender once in every round; returns the measurements by name, in the order of the rounds.

    Every other round goes backwards: a machine that gets steadily slower then puts nobody at a disadvantage.

    Args:
        contenders: with distinct names. All of them are started before the first round and live until the last.
        num_rounds: number of measurements of each.
        timeout_seconds: timeout of a contender's start, and of each measurement.
        combine: combines the simultaneous measurements of a contender's processes into one number.

    Raises:
        WorkerError: a contender fails, dies or takes too long. All processes are ended then.
    """
    measured: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    if len(measured) != len(contenders):
        raise ValueError(f"Contenders need unique names. Received: {[c.name for c in contenders]}")
    with contextlib.ExitStack() as stack:
        running = {}
        for contender in contenders:
            # One after the other: starting takes CPU time, so two at once would only slow each other down.
            workers = running[contender.name] = Workers(contender, timeout_seconds)
            stack.callback(workers.stop)
            _log.info("started %s", contender.name)
        for index in range(num_rounds):
            for name in list(running)[:: -1 if index % 2 else 1]:
                value = combine(running[name].measure())
                _log.info("round %d of %d, %s: %.5g", index + 1, num_rounds, name, value)
                measured[name].append(value)
    return measured
