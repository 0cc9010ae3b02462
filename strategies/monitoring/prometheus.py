"""The status of a job in Prometheus' text format, version 0.0.4. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategies.monitoring.job_status import JobStatus, RankStatus
from strategies.monitoring.reports import RankReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "keras_strategies"


@dataclass(frozen=True)
class _Metric:
    """One metric: its name without prefix, its type, its help, and its value; None leaves it out."""

    name: str
    kind: str
    help: str
    value: Callable[[JobStatus], float | None]


@dataclass(frozen=True)
class _RankMetric:
    name: str
    kind: str
    help: str
    value: Callable[[RankReport], float | None]


_OF_JOB = (
    _Metric("ranks", "gauge", "Number of ranks of the job.", lambda job: job.world_size),
    _Metric("restarts_total", "counter", "Restarts of the job so far.", lambda job: job.num_restarts),
    _Metric("epoch", "gauge", "Running epoch, from 1.", lambda job: job.epoch),
    _Metric("epochs", "gauge", "Last epoch of fit.", lambda job: job.epochs),
    _Metric("steps_per_second", "gauge", "Training steps per second.", lambda job: job.steps_per_second),
    _Metric("progress_ratio", "gauge", "Finished share of fit, 0 to 1.", lambda job: job.fraction),
    _Metric("seconds_left", "gauge", "Time that fit still takes.", lambda job: job.seconds_left),
    _Metric("checkpoint_age_seconds", "gauge", "Time since the last save.", lambda job: job.checkpoint_age_seconds),
)
_OF_RANK = (
    _RankMetric("rank_step", "gauge", "Finished steps of the epoch.", lambda rank: rank.step),
    _RankMetric("rank_steps_total", "counter", "Finished training steps.", lambda rank: rank.total_steps),
    _RankMetric(
        "rank_waiting_input_ratio", "gauge", "Share of time waiting for batches.", lambda rank: rank.waiting_input
    ),
    _RankMetric(
        "rank_waiting_others_ratio",
        "gauge",
        "Share of time with a collective pending.",
        lambda rank: rank.waiting_others,
    ),
    _RankMetric("rank_memory_bytes", "gauge", "Host memory of the process.", lambda rank: rank.memory_bytes),
    _RankMetric("rank_peak_memory_bytes", "gauge", "Most host memory so far.", lambda rank: rank.peak_memory_bytes),
    _RankMetric("rank_device_memory_bytes", "gauge", "GPU memory in use.", lambda rank: rank.device_memory_bytes),
    _RankMetric(
        "rank_peak_device_memory_bytes", "gauge", "Most GPU memory so far.", lambda rank: rank.peak_device_memory_bytes
    ),
)


def prometheus_text(job: JobStatus) -> str:
    """Returns the metrics of a job. Ranks have the label "rank", and "host" once they have reported."""
    lines: list[str] = []
    _add(
        lines,
        "up",
        "gauge",
        "1 while all ranks are alive.",
        [({}, float(bool(job.ranks) and all(rank.is_alive for rank in job.ranks)))],
    )
    for metric in _OF_JOB:
        value = metric.value(job)
        _add(lines, metric.name, metric.kind, metric.help, [] if value is None else [({}, value)])
    speed = [] if job.units_per_second is None else [({"unit": job.unit}, job.units_per_second)]
    _add(lines, "units_per_second", "gauge", "Units of training per second, of the whole job.", speed)
    _add(lines, "rank_up", "gauge", "1 while the process of the rank is alive.", _by_rank(job, lambda r: r.is_alive))
    _add(lines, "rank_straggler", "gauge", "1 while the others wait for it.", _by_rank(job, lambda r: r.is_straggler))
    _add(
        lines, "rank_report_age_seconds", "gauge", "Time since its last report.", _by_rank(job, lambda r: r.age_seconds)
    )
    for of_rank in _OF_RANK:
        read = of_rank.value
        samples = _by_rank(job, lambda rank, read=read: None if rank.report is None else read(rank.report))  # type: ignore[misc]
        _add(lines, of_rank.name, of_rank.kind, of_rank.help, samples)
    return "\n".join([*lines, ""])


def _by_rank(job: JobStatus, read: Callable[[RankStatus], float | None]) -> list[tuple[dict[str, str], float]]:
    found = []
    for rank in job.ranks:
        value = read(rank)
        if value is not None:
            host = {} if rank.report is None else {"host": rank.report.host}
            found.append(({"rank": str(rank.rank), **host}, float(value)))
    return found


def _add(lines: list[str], name: str, kind: str, text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> None:
    if not samples:
        return
    full = f"{_PREFIX}_{name}"
    lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels.items())
        lines.append(f"{full}{{{shown}}} {value:.10g}" if shown else f"{full} {value:.10g}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
