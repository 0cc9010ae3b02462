"""The end of a job, as messages and as an exit code. Standard library only."""

import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strategies.launching.messages import Cause, Kind
from strategies.launching.signals import signal_name
from strategies.topology.rank_end import PREEMPTED

#: The detail of a cause: the node has left, and the others continue.
LEFT = "left"


def first_failure(statuses: Mapping[int, int]) -> int:
    """Returns the rank to name as the cause, of several that were found failed at the same time.

    A rank that was killed by a signal is preferred, since the failure of another rank cannot be the cause of that.

    Args:
        statuses: by rank, the exit code, or minus the signal that killed it.
    """
    return min(statuses, key=lambda rank: (statuses[rank] > 0, rank))


def described(cause: Cause, *, one_node: bool) -> str:
    """Returns a cause in words, as the beginning of a sentence; it names the node if the job has several."""
    rank = f"rank {cause.rank} (pid {cause.pid})" if one_node else f"rank {cause.rank} on {cause.node}"
    if cause.kind is Kind.RANK:
        why = f"exit code {cause.status}" if cause.status > 0 else f"signal {signal_name(-cause.status)}"
        if cause.status == -signal.SIGKILL:
            why += " (by the system, if memory ran out)"
        return f"{rank} failed with {why}"
    if cause.kind in (Kind.LATE, Kind.STOPPED):
        return f"{rank} {cause.detail}"
    if cause.kind is Kind.PREEMPTED and cause.status:
        return f"{'' if one_node else cause.node + ' was '}ended by {signal_name(cause.status)}"
    if cause.kind is Kind.PREEMPTED:
        return f"{rank} was preempted (exit code {PREEMPTED})"
    if cause.kind is Kind.SIGNAL:
        return f"{'' if one_node else cause.node + ' was '}ended by {signal_name(cause.status)}"
    if cause.kind is Kind.NODE:
        return f"{cause.node} is gone: {cause.detail}"
    return cause.detail if one_node else f"{cause.node}: {cause.detail}"


def exit_code(cause: Cause | None, node_rank: int) -> int:
    """Returns the exit code of a node's launcher."""
    if cause is None:
        return 0
    if cause.kind is Kind.PREEMPTED:
        return PREEMPTED
    if cause.kind is Kind.SIGNAL:
        return 128 + cause.status
    if cause.kind is Kind.RANK and cause.node_rank == node_rank:
        return cause.status if cause.status > 0 else 128 - cause.status
    return 1


@dataclass(frozen=True)
class Ending:
    """The end of the job, as this node's launcher reports it.

    Args:
        cause: the reason for the end of the job; None if it succeeded.
        last_lines: for "stderr" and "stdout", the last lines of the rank that failed, if it ran on this node.
        killed: the ranks of this node that did not end in time.
        tracebacks: this node's folder with the tracebacks of its ranks; None if they left none.
        one_node: True if the job has one node only.
        num_processes: the number of processes of this node.
    """

    cause: Cause | None
    last_lines: Mapping[str, Sequence[str]]
    killed: tuple[int, ...]
    tracebacks: Path | None
    one_node: bool
    num_processes: int


def report(end: Ending) -> None:
    """Prints why the job failed, as its last lines on stderr on this node; prints nothing if it succeeded."""
    cause, text = end.cause, []
    for stream, lines in end.last_lines.items():
        if cause is not None and lines:
            text.append(f"---- the last lines of rank {cause.rank} on {stream} ----")
            text += lines
    if end.last_lines:
        text.append("-" * 60)
    if ranks := ", ".join(map(str, end.killed)):
        text.append(f"strategies.launch: did not end in time and were killed: rank {ranks}.")
    if end.tracebacks is not None:
        text.append(f"strategies.launch: tracebacks of the ranks: {end.tracebacks}")
    if cause is not None:
        sentence = described(cause, one_node=end.one_node)
        text.append(f"strategies.launch: {sentence}{_after(cause, end.one_node, end.num_processes)}")
        if cause.reason:
            text.append(f"strategies.launch: the reason: {cause.reason}")
    if text:
        with contextlib.suppress(OSError):
            print("\n".join(text), file=sys.stderr, flush=True)


def _after(cause: Cause, one_node: bool, num_processes: int) -> str:
    """Returns the rest of the sentence about a cause."""
    if cause.kind is Kind.PREEMPTED and cause.detail == LEFT:
        return f"; its ranks ended with exit code 0 or {PREEMPTED}: the job goes on without it."
    if cause.kind is Kind.PREEMPTED:
        return f"; all ranks ended with exit code 0 or {PREEMPTED}: the job can go on, with the same command."
    if cause.kind in (Kind.RANK, Kind.LATE, Kind.STOPPED) and not one_node:
        return " and all others were terminated."
    if cause.kind in (Kind.RANK, Kind.LATE, Kind.STOPPED) and num_processes > 1:
        return " and the others of this node were terminated."
    return "."
