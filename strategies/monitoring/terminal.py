"""The status of a job as lines for a terminal. Pure."""

from __future__ import annotations

from strategies.monitoring.job_status import JobStatus, RankStatus
from strategies.text_table import text_table

_NOTHING = "-"
_BAR_WIDTH = 30
_GIBIBYTE = 2**30
_HEADING = ("rank", "host", "state", "steps", "input", "others", "memory", "GPU", "")


def terminal_lines(job: JobStatus) -> list[str]:
    """Returns the status as lines: the job, its progress, and a table of its ranks."""
    lines = [_job_line(job)]
    if job.restart_reason:
        lines.append(f"last restart: {job.restart_reason}")
    if job.epochs:
        lines.append(_progress_line(job))
    speed = [
        *([f"{number(job.units_per_second)} {job.unit}/s"] if job.units_per_second is not None else []),
        *([f"{number(job.steps_per_second)} steps/s"] if job.steps_per_second is not None else []),
    ]
    if speed:
        lines.append(f"speed     {', '.join(speed)}")
    if job.checkpoint:
        age = duration(job.checkpoint_age_seconds)
        lines.append(f"saved     {job.checkpoint}, after step {job.checkpoint_step}, {age} ago")
    if job.stragglers:
        lines.append(f"SLOW      the others wait for rank {', '.join(map(str, job.stragglers))}")
    rows = [_HEADING, *(_row(rank) for rank in job.ranks)]
    return [printable(line) for line in (*lines, "", *text_table(rows, left=(1, 2, 8)))]


def printable(text: str) -> str:
    """Returns a text with escapes for characters that a terminal would obey: paths and reasons can have any."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _job_line(job: JobStatus) -> str:
    ranks = f"{job.world_size} rank{'' if job.world_size == 1 else 's'}"
    restarts = f", restarts: {job.num_restarts} of {job.max_restarts}" if job.max_restarts else ""
    since = "" if job.round_seconds is None else f", started {duration(job.round_seconds)} ago"
    return f"job       {job.state}, {ranks}{restarts}{since}"


def _progress_line(job: JobStatus) -> str:
    epoch = f"epoch {job.epoch} of {job.epochs}, step {job.step}"
    epoch += f" of {job.steps_per_epoch}" if job.steps_per_epoch else ""
    if job.fraction is None:
        return f"progress  {epoch}"
    filled = round(job.fraction * _BAR_WIDTH)
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    left = "" if job.seconds_left is None else f", {duration(job.seconds_left)} left"
    return f"progress  [{bar}] {job.fraction:.0%}, {epoch}{left}"


def _row(rank: RankStatus) -> tuple[str, ...]:
    report = rank.report
    if report is None:
        return (str(rank.rank), _NOTHING, rank.state, *[_NOTHING] * 5, "")
    return (
        str(rank.rank),
        report.host,
        rank.state,
        str(report.total_steps),
        share(report.waiting_input),
        share(report.waiting_others),
        size(report.memory_bytes),
        size(report.device_memory_bytes),
        "SLOW" if rank.is_straggler else "",
    )


def duration(seconds: float | None) -> str:
    """Returns a time as in "42 s", "3 min 05 s", "2 h 05 min" or "3 d 04 h"."""
    if seconds is None:
        return _NOTHING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def share(value: float | None) -> str:
    """Returns a share from 0 to 1 as in "37 %"."""
    return _NOTHING if value is None else f"{100 * value:.0f} %"


def size(num_bytes: int | None) -> str:
    """Returns a number of bytes as in "1.25 GiB"."""
    return _NOTHING if num_bytes is None else f"{num_bytes / _GIBIBYTE:.2f} GiB"


def number(value: float | None) -> str:
    """Returns a number with three digits, or whole and with commas, as in "12,345"."""
    if value is None:
        return _NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
