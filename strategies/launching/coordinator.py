"""The decisions about a job, made on node 0: which ranks end, whether they start again. Standard library only.

This module neither communicates nor waits: it takes events from nodes, and returns commands for them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from strategies.launching.messages import (
    Cause,
    Command,
    Ended,
    Event,
    Finish,
    Kind,
    Node,
    Outcome,
    Standstill,
    Start,
    Stop,
)
from strategies.launching.ports import LaunchError
from strategies.launching.verdict import LEFT, described

#: Before a restart SIGKILL follows SIGTERM after this time: the peers of a failed rank are often stuck in a collective.
RESTART_GRACE_SECONDS = 2.0

#: Pairs of the receiver's node rank and a command.
Commands = Iterator[tuple[int, Command]]


@dataclass(frozen=True)
class Policy:
    """The limits of restarts.

    Args:
        max_restarts: the number of restarts after failures.
        min_procs: the number of processes without which the job does not continue; None: all that it began with.
        grace_seconds: time from SIGTERM to SIGKILL.
        is_watched: True if the ranks are to report their status.
    """

    max_restarts: int = 0
    min_procs: int | None = None
    grace_seconds: float = 10.0
    is_watched: bool = False

    @property
    def restart_grace_seconds(self) -> float:
        """The time from SIGTERM to SIGKILL before a restart."""
        return min(RESTART_GRACE_SECONDS, self.grace_seconds)

    def check(self, nodes: Mapping[int, Node]) -> None:
        """Raises LaunchError if the nodes have fewer processes than the job needs."""
        total = sum(len(node.ports) for node in nodes.values())
        if self.min_procs is not None and self.min_procs > total:
            raise LaunchError(
                f"--min-procs must not exceed the number of processes of all nodes, {total}. Received: {self.min_procs}"
            )


class Coordinator:
    """The state of a job: its nodes, the current round, and the cause for which the round ends.

    A round has at most one cause: the first one, except that any other cause replaces a preemption. When all nodes have
    reported that their ranks have ended, the next round starts, or the job is over.
    """

    def __init__(self, nodes: Mapping[int, Node], policy: Policy) -> None:
        self._nodes = dict(nodes)
        self._policy = policy
        total = sum(len(node.ports) for node in nodes.values())
        self._min_procs = total if policy.min_procs is None else policy.min_procs
        self._one_node = len(nodes) == 1
        self._round = 0
        self._num_restarts = 0
        self._cause: Cause | None = None
        self._ended: dict[int, Outcome] = {}
        self._stopped: dict[int, Cause] = {}
        self._asked: dict[int, Cause] = {}

    def begin(self) -> Commands:
        """Returns the commands that start the first round."""
        yield from self._start("")

    def handle(self, node_rank: int, event: Event) -> Commands:
        """Handles an event of a node."""
        # Events of earlier rounds are ignored, except that a launcher was asked to stop.
        if node_rank not in self._nodes:
            return
        if isinstance(event, Ended):
            if event.round == self._round:
                self._ended[node_rank] = event.outcome
                self._stopped.pop(node_rank, None)
                self._nodes[node_rank] = replace(self._nodes[node_rank], ports=event.ports)
                yield from self._decide()
                yield from self._end_if_none_runs()
        elif isinstance(event, Standstill):
            if event.round == self._round:
                self._stopped.pop(node_rank, None)
                if event.cause is not None:
                    self._stopped[node_rank] = event.cause
                yield from self._end_if_none_runs()
        elif event.cause.kind is Kind.SIGNAL:
            self._asked.setdefault(node_rank, event.cause)
            yield from self._end_round(event.cause, 0.0 if event.urgent else self._policy.grace_seconds)
        elif event.round == self._round:
            yield from self._end_round(event.cause, self._grace_after_failure())

    def lost(self, node_rank: int, why: str) -> Commands:
        """Removes a node that is gone, and ends the round."""
        node = self._nodes.pop(node_rank, None)
        if node is None:
            return
        self._ended.pop(node_rank, None)
        self._stopped.pop(node_rank, None)
        self._asked.pop(node_rank, None)
        cause = Cause(Kind.NODE, node_rank, node.name, detail=why)
        yield from self._end_round(cause, self._grace_after_failure())
        yield from self._decide()

    @property
    def _may_restart(self) -> bool:
        return self._num_restarts < self._policy.max_restarts and not self._asked

    def _enough(self, nodes: Iterable[int]) -> bool:
        return 0 in nodes and sum(len(self._nodes[rank].ports) for rank in nodes) >= self._min_procs

    def _grace_after_failure(self) -> float:
        goes_on = self._may_restart and self._enough(self._nodes)
        return self._policy.restart_grace_seconds if goes_on else self._policy.grace_seconds

    def _end_round(self, cause: Cause, grace_seconds: float) -> Commands:
        known = self._cause
        if known is None or (known.kind is Kind.PREEMPTED and cause.kind is not Kind.PREEMPTED):
            self._cause = cause
        elif grace_seconds > 0 or cause.kind is not Kind.SIGNAL:
            # The ranks are already ending, for another reason.
            return
        waits = cause.kind is Kind.PREEMPTED
        for node_rank in self._nodes:
            yield node_rank, Stop(self._round, not waits, self._policy.grace_seconds if waits else grace_seconds)

    def _end_if_none_runs(self) -> Commands:
        """Ends the round if none of its ranks runs: a running rank would report stopped ones that it waits for."""
        if self._stopped and self._nodes.keys() <= self._stopped.keys() | self._ended.keys():
            yield from self._end_round(self._stopped[min(self._stopped)], self._grace_after_failure())

    def _decide(self) -> Commands:
        """Starts the next round, or ends the job, when all ranks of this one have ended."""
        if self._ended.keys() != self._nodes.keys():
            return
        cause, outcomes = self._cause, set(self._ended.values())
        all_preempted = Outcome.PREEMPTED in outcomes and Outcome.FAILED not in outcomes
        if cause is None:
            yield from self._finish(self._nodes, None)
        elif cause.kind is Kind.SIGNAL:
            yield from self._after_signal(cause, all_preempted)
        elif cause.kind is Kind.PREEMPTED and all_preempted:
            if self._policy.max_restarts > 0 and not self._asked:
                yield from self._start(f"{self._described(cause)}; not counted as a restart")
            else:
                yield from self._finish(self._nodes, cause)
        elif cause.kind is not Kind.START and self._may_restart and self._enough(self._nodes):
            self._num_restarts += 1
            yield from self._start(
                f"{self._described(cause)}; restart {self._num_restarts} of {self._policy.max_restarts}"
            )
        else:
            yield from self._finish(self._nodes, cause)

    def _after_signal(self, cause: Cause, all_preempted: bool) -> Commands:
        """Continues without the launchers that were asked to stop, if the policy allows it; otherwise ends the job."""
        left = {rank: node for rank, node in self._nodes.items() if rank not in self._asked}
        preempted = replace(cause, kind=Kind.PREEMPTED)
        if self._enough(left) and all(self._ended[rank] is Outcome.PREEMPTED for rank in self._asked):
            leaving = [rank for rank in self._nodes if rank in self._asked]
            yield from self._finish(leaving, replace(preempted, detail=LEFT))
            self._nodes = left
            yield from self._start(f"{self._described(cause)} and has left; not counted as a restart")
        else:
            yield from self._finish(self._nodes, preempted if all_preempted else cause)

    def _described(self, cause: Cause) -> str:
        return described(cause, one_node=self._one_node)

    def _start(self, reason: str) -> Commands:
        if reason:
            self._round += 1
            total = sum(len(node.ports) for node in self._nodes.values())
            reason = f"{reason}, with {total} process{'es' if total != 1 else ''}."
            exit_reason = self._cause.reason if self._cause is not None else ""
            reason += f" The reason: {exit_reason}" if exit_reason else ""
        self._cause, self._ended, self._stopped, self._asked = None, {}, {}, {}
        start = Start(
            self._round,
            self._num_restarts,
            self._policy.max_restarts,
            tuple(self._nodes[rank] for rank in sorted(self._nodes)),
            self._grace_after_failure(),
            reason,
            self._policy.is_watched,
        )
        for node_rank in self._nodes:
            yield node_rank, start

    def _finish(self, node_ranks: Iterable[int], cause: Cause | None) -> Commands:
        for node_rank in list(node_ranks):
            yield node_rank, Finish(cause)
            del self._nodes[node_rank]
