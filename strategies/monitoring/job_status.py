"""The status of a job, made of the reports of its ranks and launchers. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

from strategies.control_plane.message import Message
from strategies.control_plane.stragglers import slow_ranks, slow_ranks_now
from strategies.monitoring.reports import LAUNCHER, RANK, JobState, LauncherReport, RankProcess, RankReport, from_text
from strategies.monitoring.store import Posted, ReportStore

#: The version of the JSON; a field may be added without a new one, and clients ignore those that they do not know.
VERSION = 1
#: A rank that has not reported for this time counts as silent: it is stopped, or its machine is too busy.
SILENT_SECONDS = 3.0

_Report = TypeVar("_Report", bound=Message)


@dataclass(frozen=True)
class RankStatus(Message):
    """One rank of a job.

    Args:
        rank: its rank.
        state: in words: "starting", "fit", "evaluate", "between calls", "silent for 5 s", "stopped", "exit code 1",
            "killed by SIGKILL (9)".
        is_alive: False if its process has ended, or nothing is known of it.
        is_straggler: True if the others wait for it.
        age_seconds: the time since its last report; None without one.
        report: its last report; None without one.
    """

    rank: int
    state: str
    is_alive: bool
    is_straggler: bool = False
    age_seconds: float | None = None
    report: RankReport | None = None


@dataclass(frozen=True)
class JobStatus(Message):
    """A whole job.

    Args:
        version: of this format.
        state: "starting", "running", "stopping" or "ended".
        world_size: the number of ranks.
        num_restarts, max_restarts: the restarts so far, and their limit.
        restart_reason: the reason for the last one, in a sentence; empty before the first one.
        round_seconds: the time since the ranks were started last; None if no launcher reports it.
        call: the method of the model that runs; the other values of the progress are those of `RankReport`.
        unit, units_per_second: the speed of the whole job.
        stragglers: the ranks for which the others wait.
        checkpoint: the last path that was saved; its step and its age; empty without one.
        ranks: one entry for each rank.
    """

    version: int
    state: str
    world_size: int
    num_restarts: int
    max_restarts: int
    restart_reason: str
    round_seconds: float | None
    call: str
    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int | None
    total_steps: int
    fraction: float | None
    seconds_left: float | None
    unit: str
    units_per_second: float | None
    steps_per_second: float | None
    stragglers: tuple[int, ...]
    checkpoint: str
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    ranks: tuple[RankStatus, ...]

    @classmethod
    def from_json(cls, received: Any) -> Self:
        """Returns the status in a JSON value; fields of newer servers are left out.

        Raises:
            ValueError: it is no status.
        """
        return super().from_json(_known(cls, received))


def _known(kind: type, received: Any) -> Any:
    """Returns a JSON value without the fields that a class does not have, in the job, its ranks and their reports."""
    if not isinstance(received, dict):
        return received
    parts: dict[str, Callable[[Any], Any]] = {
        "ranks": lambda ranks: [_known(RankStatus, each) for each in ranks] if isinstance(ranks, list) else ranks,
        "report": lambda report: _known(RankReport, report),
    }
    names = [field.name for field in fields(kind) if field.name in received]
    return {name: parts.get(name, lambda value: value)(received[name]) for name in names}


def read_reports(store: ReportStore) -> dict[int, tuple[RankReport, float]]:
    """Returns the last report of each rank, with the time at which it arrived."""
    return _parsed(RankReport, store.read(RANK))


def read_status(store: ReportStore, now: float) -> JobStatus:
    """Returns the status of the job that reports to a store.

    Args:
        store: the store.
        now: as `time.time` gives it.
    """
    launchers = [report for report, _ in _parsed(LauncherReport, store.read(LAUNCHER)).values()]
    return job_status(read_reports(store), launchers, now)


def _parsed(kind: type[_Report], texts: Mapping[int, Posted]) -> dict[int, tuple[_Report, float]]:
    found = {}
    for number, posted in texts.items():
        try:
            found[number] = kind.from_json(from_text(posted.text)), posted.arrived
        except ValueError:
            # Of another version.
            continue
    return found


def job_status(
    reports: Mapping[int, tuple[RankReport, float]], launchers: Iterable[LauncherReport], now: float
) -> JobStatus:
    """Returns the status of a job.

    Args:
        reports: by rank, its report and the time at which it arrived.
        launchers: the reports of our launchers; none if another one has started the ranks.
        now: the time.
    """
    launchers = list(launchers)
    processes = {process.rank: process for launcher in launchers for process in launcher.processes}
    sizes = [launcher.world_size for launcher in launchers] or [report.world_size for report, _ in reports.values()]
    world_size = max(sizes, default=0)
    ranks = [_rank(rank, reports.get(rank), processes.get(rank), now) for rank in range(world_size)]
    stragglers = _stragglers(ranks)
    first = _furthest(ranks)
    saved = min(
        (rank.report for rank in ranks if rank.report is not None and rank.report.checkpoint),
        key=lambda report: report.checkpoint_age_seconds or 0.0,
        default=RankReport(0, 0, "", 0),
    )
    return JobStatus(
        version=VERSION,
        state=_state(launchers, ranks),
        world_size=world_size,
        num_restarts=max((launcher.num_restarts for launcher in launchers), default=0),
        max_restarts=max((launcher.max_restarts for launcher in launchers), default=0),
        restart_reason=next((launcher.reason for launcher in launchers if launcher.reason), ""),
        round_seconds=max((max(0.0, now - launcher.began) for launcher in launchers), default=None),
        call=first.call,
        epoch=first.epoch,
        epochs=first.epochs,
        step=first.step,
        steps_per_epoch=first.steps_per_epoch,
        total_steps=first.total_steps,
        fraction=first.fraction,
        seconds_left=first.seconds_left,
        unit=first.unit,
        units_per_second=first.units_per_second,
        steps_per_second=first.steps_per_second,
        stragglers=stragglers,
        checkpoint=saved.checkpoint,
        checkpoint_step=saved.checkpoint_step,
        checkpoint_age_seconds=saved.checkpoint_age_seconds,
        ranks=tuple(replace(rank, is_straggler=rank.rank in stragglers) for rank in ranks),
    )


def _rank(rank: int, reported: tuple[RankReport, float] | None, process: RankProcess | None, now: float) -> RankStatus:
    report, arrived = reported or (None, now)
    age = None if report is None else max(0.0, now - arrived)
    if process is not None and process.status is not None:
        return RankStatus(rank, _end(process.status), False, False, age, report)
    if process is not None and process.is_stopped:
        state = "stopped"
    elif report is None or age is None:
        # Without our launcher, nothing is known of a rank before its first report.
        return RankStatus(rank, "starting", process is not None)
    elif age > SILENT_SECONDS:
        state = f"silent for {age:.0f} s"
    else:
        state = report.call or ("between calls" if report.total_steps else "starting")
    return RankStatus(rank, state, True, False, age, report)


def _end(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name} ({-status})"
    except ValueError:
        return f"killed by signal {-status}"


def _stragglers(ranks: Iterable[RankStatus]) -> tuple[int, ...]:
    """Returns the ranks for which the others wait: now, as a stopped one, or in the long run."""
    alive = [rank for rank in ranks if rank.is_alive and rank.report is not None]
    shares = [(rank.report.waiting_others, rank.report.waiting_others_longer) for rank in alive if rank.report]
    found = set()
    short = [share for share, _ in shares if share is not None]
    longer = [share for _, share in shares if share is not None]
    # A sample that is read once a second exists once or twice in the last moments.
    if len(short) == len(alive) and all(rank.report.waiting_is_current for rank in alive if rank.report):
        # A rank that does not report runs no collective that the others see.
        heard = [0.0 if _is_silent(rank) else share for rank, share in zip(alive, short, strict=True)]
        found |= {alive[index].rank for index in slow_ranks_now(heard)}
    if len(longer) == len(alive):
        found |= {alive[index].rank for index in slow_ranks(longer)}
    return tuple(sorted(found))


def _is_silent(rank: RankStatus) -> bool:
    return rank.age_seconds is not None and rank.age_seconds > SILENT_SECONDS


def _furthest(ranks: Iterable[RankStatus]) -> RankReport:
    """Returns the report of rank 0, or the first one that exists: all ranks make the same steps."""
    reports = [rank.report for rank in ranks if rank.report is not None]
    return next(iter(reports), RankReport(0, 0, "", 0))


def _state(launchers: Iterable[LauncherReport], ranks: Iterable[RankStatus]) -> str:
    states = {launcher.state for launcher in launchers}
    if JobState.STOPPING in states:
        return str(JobState.STOPPING)
    if states == {JobState.ENDED}:
        return str(JobState.ENDED)
    reports = [rank.report for rank in ranks]
    return "running" if reports and all(report is not None for report in reports) else "starting"
