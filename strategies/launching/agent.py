"""The launcher's work on a node: starts ranks, reports their ends, runs commands of node 0. Standard library only."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strategies.launching.links import Team
from strategies.launching.messages import (
    Cause,
    Command,
    Ended,
    Finish,
    Incident,
    Kind,
    Node,
    Outcome,
    Standstill,
    Start,
    Stop,
)
from strategies.launching.output import Output
from strategies.launching.ports import LaunchError
from strategies.launching.processes import Process, Ranks, Task
from strategies.launching.signals import PASSED_ON, STOPPING, Signals, signal_name
from strategies.launching.verdict import Ending, exit_code, first_failure, report
from strategies.monitoring.reports import JobState
from strategies.topology.rank_end import PREEMPTED

_BLOCKED_SECONDS = 5.0
# A signal may arrive twice: timeout(1) and some wrappers signal both us and our process group.
_SAME_REQUEST_SECONDS = 1.0
# A running stopwatch is read this often; if the time between two looks is longer, this process was stopped meanwhile.
_SECONDS_BETWEEN_LOOKS = 1.0
_MOST_SECONDS_BETWEEN_LOOKS = 2.0


class _Stopwatch:
    """Counts how long a condition holds. Times in which this process itself was stopped, as with its job, do not count.

    Example:

        watch = _Stopwatch()
        while watch.seconds < 30:
            watch.look(goes_on=is_stopped(pid))
            time.sleep(watch.seconds_left)
    """

    def __init__(self) -> None:
        self._looked_at: float | None = None
        #: The seconds for which the condition has held; 0 if it does not hold.
        self.seconds = 0.0

    def look(self, *, goes_on: bool) -> None:
        """Notes whether the condition holds now."""
        now = time.monotonic()
        if not goes_on:
            self._looked_at, self.seconds = None, 0.0
            return
        if self._looked_at is not None:
            self.seconds += min(now - self._looked_at, _MOST_SECONDS_BETWEEN_LOOKS)
        self._looked_at = now

    @property
    def seconds_left(self) -> float:
        """The time until the next look; infinite if the condition does not hold."""
        return float("inf") if self._looked_at is None else _SECONDS_BETWEEN_LOOKS


class Plan(Protocol):
    """The ranks of this node: the processes to start, and what they have left at their end."""

    def tasks(self, start: Start) -> Sequence[Task]:
        """Returns the processes to start, and releases the ports that `renew` has returned."""

    def renew(self) -> tuple[int, ...]:
        """Returns free ports for the next round, and holds them."""

    def read_exit_reason(self, rank: int) -> str:
        """Returns the exit reason that the program of a rank left in this round; empty if it left none."""

    def close_folder(self, *, ended_well: bool) -> Path | None:
        """Removes the folder of tracebacks; if the job failed and left any, keeps it and returns its path."""


@dataclass(frozen=True)
class Settings:
    """The settings of this node.

    Args:
        own: the node itself.
        grace_seconds: time from SIGTERM to SIGKILL.
        stopped_seconds: ranks that are stopped for this time, while no other rank runs, count as lost; 0: never.
    """

    own: Node
    grace_seconds: float
    stopped_seconds: float = 0.0

    @property
    def one_node(self) -> bool:
        """True if the job has one node only."""
        return self.own.num_nodes == 1


class Watcher(Protocol):
    """Shows the state of the ranks of this node to others."""

    def note(self, state: JobState, processes: Sequence[Process]) -> None:
        """Takes the state of the ranks, at every look at them."""


def run_node(team: Team, plan: Plan, settings: Settings, watcher: Watcher) -> int:
    """Runs this node's part of the job to its end, and returns the launcher's exit code.

    The exit code is 0 if all processes of all nodes ended with 0. Otherwise, on the node of the first rank that failed,
    it is that rank's exit code, or 128 + the signal that killed it. It is 128 + the signal if a launcher was stopped by
    one, `PREEMPTED` if the job can continue later, and 1 for other causes and on other nodes. Call this function from
    the main thread.
    """
    with Signals() as signals:
        agent = _Agent(team, plan, settings, signals, watcher)
        try:
            finish = agent.run()
        finally:
            agent.close()
            team.close()
    return agent.conclude(finish)


class _Agent:
    def __init__(self, team: Team, plan: Plan, settings: Settings, signals: Signals, watcher: Watcher) -> None:
        self._team, self._plan, self._settings, self._signals = team, plan, settings, signals
        self._watcher = watcher
        self._start: Start | None = None
        self._ranks: Ranks | None = None
        self._output: Output | None = None
        #: The signal that asked this launcher to stop.
        self._asked: int | None = None
        self._asked_at = 0.0
        self._standstill = _Stopwatch()
        self._stands_still = False
        self._outcome = Outcome.DONE
        self._killed: tuple[int, ...] = ()

    def run(self) -> Finish:
        """Runs until all ranks have ended and node 0 ends the job; returns its last command."""
        while True:
            for command in self._team.listen():
                if isinstance(command, Finish):
                    return command
                self._obey(command)
            self._look()
            for signum in self._signals.wait(self._seconds_left(), self._team.interests()):
                self._take(signum)

    def close(self) -> None:
        """Kills the ranks that still run, if `run` raised an error."""
        if self._ranks is not None:
            self._ranks.close()

    def conclude(self, finish: Finish) -> int:
        """Prints the rest of the output and the report, and returns the exit code."""
        cause, settings = self._final(finish.cause), self._settings
        is_own = cause is not None and cause.kind is Kind.RANK and cause.node_rank == settings.own.node_rank
        last_lines = {}
        if self._output is not None:
            # After a signal to stop, do not wait long for blocked output.
            self._output.finish(None if self._asked is None else _BLOCKED_SECONDS)
            last_lines = self._output.last_lines(cause.rank) if cause is not None and is_own else {}
        ending = Ending(
            cause=cause,
            last_lines=last_lines,
            killed=self._killed,
            tracebacks=self._plan.close_folder(ended_well=cause is None),
            one_node=settings.one_node,
            num_processes=len(settings.own.ports),
        )
        report(ending)
        return exit_code(cause, settings.own.node_rank)

    def _final(self, cause: Cause | None) -> Cause | None:
        """Returns the final cause: if node 0 is gone and this launcher was asked to stop, too, the latter counts."""
        if cause is None or cause.kind is not Kind.NODE or self._asked is None:
            return cause
        return self._cause(Kind.PREEMPTED if self._outcome is Outcome.PREEMPTED else Kind.SIGNAL, status=self._asked)

    def _seconds_left(self) -> float | None:
        left = [self._ranks.seconds_left] if self._ranks is not None else []
        seconds = self._team.seconds_left()
        left += [] if seconds is None else [seconds]
        left += [self._standstill.seconds_left] if self._ranks is not None else []
        least = min(left, default=float("inf"))
        return None if least == float("inf") else max(0.0, least)

    def _cause(
        self, kind: Kind, rank: int = 0, pid: int = 0, status: int = 0, detail: str = "", reason: str = ""
    ) -> Cause:
        own = self._settings.own
        return Cause(kind, own.node_rank, own.name, rank, pid, status, detail, reason)

    def _send_incident(self, cause: Cause, *, urgent: bool = False) -> None:
        self._team.send_event(Incident(self._start.round if self._start else 0, cause, urgent))

    def _obey(self, command: Command) -> None:
        if isinstance(command, Start):
            self._begin(command)
        elif not isinstance(command, Stop) or self._ranks is None or self._start is None:
            return
        elif command.round == self._start.round and command.terminate:
            self._ranks.stop(signal.SIGTERM, command.grace_seconds)
        elif command.round == self._start.round:
            self._ranks.wait(command.grace_seconds)

    def _begin(self, start: Start) -> None:
        if self._output is not None:
            # Ends the output thread: ranks must be forked while no thread of ours runs.
            self._output.finish(_BLOCKED_SECONDS)
        self._start, self._output, self._killed = start, Output(), ()
        self._standstill, self._stands_still = _Stopwatch(), False
        if start.reason:
            self._output.log(f"strategies.launch: {start.reason}")
        try:
            self._ranks = Ranks(self._plan.tasks(start), self._output)
        except LaunchError as error:
            self._send_incident(self._cause(Kind.START, detail=str(error).removesuffix(".")))
            self._outcome = Outcome.FAILED
            self._team.send_event(Ended(start.round, self._outcome, self._settings.own.ports))
        self._output.start()

    def _look(self) -> None:
        ranks, start = self._ranks, self._start
        if ranks is None or start is None:
            return
        ended = ranks.look()
        if not ranks.is_terminating:
            self._notice(ranks, start, ended)
            self._watch(ranks, start)
        self._watcher.note(JobState.STOPPING if ranks.is_terminating else JobState.RUNNING, ranks.processes)
        if ranks.running and ranks.seconds_left > 0:
            return
        if ranks.running and not ranks.is_terminating:
            late = ranks.running[0]
            detail = f"did not end within {self._settings.grace_seconds:g} s after another rank was preempted"
            self._send_incident(self._cause(Kind.LATE, late.rank, late.pid, detail=detail))
            ranks.stop(signal.SIGTERM, start.grace_seconds)
            return
        ranks.kill()
        ranks.close()
        self._watcher.note(JobState.ENDED, ranks.processes)
        self._outcome, self._killed, self._ranks = ranks.outcome, ranks.killed, None
        self._team.send_event(Ended(start.round, self._outcome, self._plan.renew()))

    def _notice(self, ranks: Ranks, start: Start, ended: Sequence[Process]) -> None:
        """Reports the first rank that fails, or that was preempted."""
        statuses = {process.rank: process.status or 0 for process in ended if process.status not in (0, PREEMPTED)}
        if statuses:
            failed = next(process for process in ended if process.rank == first_failure(statuses))
            reason = self._plan.read_exit_reason(failed.rank)
            reason = f"{reason} {_ended_before(ranks)}".strip()
            self._send_incident(self._cause(Kind.RANK, failed.rank, failed.pid, failed.status or 0, reason=reason))
            ranks.stop(signal.SIGTERM, start.grace_seconds)
        elif preempted := [process for process in ended if process.status == PREEMPTED]:
            first = preempted[0]
            self._send_incident(self._cause(Kind.PREEMPTED, first.rank, first.pid))
            ranks.wait(self._settings.grace_seconds)

    def _watch(self, ranks: Ranks, start: Start) -> None:
        """Reports that for some time no rank of this node has run, and later that one runs again.

        Running ranks notice stopped ones themselves; if none runs, only the launchers can.
        """
        stopped, limit = ranks.stopped, self._settings.stopped_seconds
        self._standstill.look(goes_on=bool(stopped))
        stands_still = 0 < limit <= self._standstill.seconds
        if stands_still == self._stands_still:
            return
        self._stands_still, cause = stands_still, None
        if stands_still:
            first = stopped[0]
            detail = f"was stopped for {limit:g} s while no rank ran"
            cause = self._cause(Kind.STOPPED, first.rank, first.pid, detail=detail, reason=_ended_before(ranks))
        self._team.send_event(Standstill(start.round, cause))

    def _take(self, signum: int) -> None:
        """Reacts to a signal to this launcher."""
        if signum in STOPPING:
            self._stop(signum)
        elif signum in PASSED_ON and self._ranks is not None:
            self._ranks.signal(signum)

    def _stop(self, signum: int) -> None:
        now, ranks = time.monotonic(), self._ranks
        if self._asked is not None and now - self._asked_at > _SAME_REQUEST_SECONDS:
            self._send_incident(self._cause(Kind.SIGNAL, status=self._asked), urgent=True)
            return
        if self._asked is not None:
            return
        self._asked, self._asked_at = signum, now
        if ranks is not None and ranks.is_terminating and now - (ranks.stopped_at or now) > _SAME_REQUEST_SECONDS:
            # The ranks are ending already, so this counts as the second request.
            self._send_incident(self._cause(Kind.SIGNAL, status=signum), urgent=True)
            return
        if ranks is not None and self._output is not None and not ranks.is_terminating:
            grace = self._settings.grace_seconds
            self._output.log(
                f"strategies.launch: {signal_name(signum)}; waiting up to {grace:g} s for {len(ranks.running)} "
                f"processes to end. Send it again to kill them."
            )
            ranks.stop(signum, grace)
        self._send_incident(self._cause(Kind.SIGNAL, status=signum))


def _ended_before(ranks: Ranks) -> str:
    """Returns a sentence with the ranks that ended with 0: one that called `os._exit(0)` seems lost to the others."""
    early = ranks.ended_well
    names = f"rank{'s' if len(early) > 1 else ''} {', '.join(map(str, early))}"
    return f"Before it, with exit code 0, ended: {names}." if early else ""
