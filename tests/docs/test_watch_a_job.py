"""The pages on watching jobs and for clusters: commands, fields, metrics and variables exist."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest

from strategies import plan, status
from strategies.launching import flags as launcher_flags
from strategies.monitoring.job_status import JobStatus, RankStatus, job_status
from strategies.monitoring.prometheus import prometheus_text
from strategies.monitoring.settings import FOLDER_VARIABLE, PRIVATE_VARIABLES
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK

DOCS = Path(__file__).parents[2] / "docs" / "guides"
WATCH, CLUSTERS = (DOCS / name for name in ("watch_a_job.md", "for_clusters.md"))
PAGES = WATCH.read_text() + CLUSTERS.read_text()
COMMANDS = re.findall(r"^python -m strategies\.(\w+) (.+)$", PAGES, flags=re.MULTILINE)


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_commands_are_accepted(name: str, arguments: str) -> None:
    words = shlex.split(arguments)
    if name == "plan":
        # It searches in a second.
        assert plan.main(words) == 0
    else:
        {"launch": launcher_flags.parser, "status": status._parser}[name]().parse_args(words)


def test_all_fields_of_the_json_are_named() -> None:
    named = re.findall(r"`(\w+)`", CLUSTERS.read_text().split("## Progress and time left")[1].split("## ")[0])
    missing = {field.name for kind in (JobStatus, RankStatus) for field in fields(kind)} - set(named)
    assert not missing


def test_all_metrics_are_named() -> None:
    job = job_status({0: (RANK, 0.0), 1: (replace(OTHER), 0.0)}, [LAUNCHER], 0.0)
    metrics = set(re.findall(r"^# TYPE (\w+)", prometheus_text(job), flags=re.MULTILINE))
    assert metrics == set(re.findall(r"`(keras_strategies_\w+)`", CLUSTERS.read_text()))


def test_variables_exist() -> None:
    assert set(re.findall(r"STRATEGIES_\w+", PAGES)) <= {*PRIVATE_VARIABLES, FOLDER_VARIABLE}
