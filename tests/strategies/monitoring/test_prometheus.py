"""Prometheus' text format, from a literal job."""

from __future__ import annotations

import re
from dataclasses import replace

from strategies.monitoring.job_status import job_status
from strategies.monitoring.prometheus import prometheus_text
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK

JOB = job_status({0: (replace(RANK, host='a"b\\c'), 999.5), 1: (OTHER, 999.5)}, [LAUNCHER], 1000.0)
_SAMPLE = re.compile(r'keras_strategies_\w+(\{(\w+="([^"\\]|\\["\\n])*",?)+\})? -?[\d.e+-]+')


def test_every_line_has_the_format() -> None:
    for line in prometheus_text(JOB).splitlines():
        assert line.startswith(("# HELP keras_strategies_", "# TYPE keras_strategies_")) or _SAMPLE.fullmatch(line), (
            line
        )
    assert prometheus_text(JOB).endswith("\n")


def test_the_values() -> None:
    lines = prometheus_text(JOB).splitlines()
    for line in (
        "keras_strategies_up 1",
        "keras_strategies_ranks 2",
        "keras_strategies_restarts_total 1",
        "keras_strategies_seconds_left 75",
        'keras_strategies_units_per_second{unit="images"} 1280',
        'keras_strategies_rank_steps_total{rank="1",host="node-a"} 250',
        'keras_strategies_rank_memory_bytes{rank="0",host="a\\"b\\\\c"} 1610612736',
        'keras_strategies_rank_report_age_seconds{rank="1",host="node-a"} 0.5',
    ):
        assert line in lines


def test_a_job_without_ranks_is_not_up() -> None:
    assert "keras_strategies_up 0" in prometheus_text(job_status({}, [], 1000.0)).splitlines()


def test_each_metric_is_described_once_and_before_its_samples() -> None:
    lines = prometheus_text(JOB).splitlines()
    described = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(described) == len(set(described))
    for name in described:
        samples = [i for i, line in enumerate(lines) if re.match(rf"{name}[{{ ]", line)]
        assert samples == list(range(samples[0], samples[-1] + 1))
        assert lines[samples[0] - 1].startswith(f"# TYPE {name} ")


def test_what_is_not_known_is_left_out() -> None:
    text = prometheus_text(job_status({}, [LAUNCHER], 1000.0))
    assert "seconds_left" not in text
    assert 'keras_strategies_rank_up{rank="1"} 1' in text
