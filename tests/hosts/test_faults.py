"""Faults of a host in the middle of `fit`: either the job ends everywhere in time, or it continues unharmed.

`pytest -rP` shows the seconds until the end, and the reasons that ranks gave;
``HOST_FAULT_TABLE=docs/numbers/host_fault_table.md make test ARGS="tests/hosts --parity-all -n0"`` writes the table.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.hosts.jobs import ENGINES, Job
from tests.hosts.network import Hosts
from tests.hosts.table import Line, written
from tests.strategies.parity.harness import TOLERANCE, Outcome, compare

START_SECONDS = 120.0
MULTI_WORKER, HOROVOD = ENGINES
# The fault occurs in the first tenth of the training.
SECONDS_PER_STEP = 0.15
OUTAGE_SECONDS = 5.0
LATE_SECONDS = 20.0
# Timeout of collectives that a rank does not join, in rows in which the job has to end.
TIMEOUT_SECONDS = 15.0

Act = Callable[[Hosts, Job, int], None]


def dropped(hosts: Hosts, job: Job, host: int) -> None:
    hosts.drop(host)


def cut(hosts: Hosts, job: Job, host: int) -> None:
    hosts.cut(host)


def cut_for_a_while(hosts: Hosts, job: Job, host: int) -> None:
    hosts.cut(host)
    time.sleep(OUTAGE_SECONDS)
    hosts.mend(host)


def restarted(hosts: Hosts, job: Job, host: int) -> None:
    """Restarts the host's network: meanwhile its routes are gone, and sending fails at once."""
    hosts.take_down(host)
    time.sleep(OUTAGE_SECONDS)
    hosts.take_up(host)


def stopped_for_a_while(hosts: Hosts, job: Job, host: int) -> None:
    hosts.stop(host)
    time.sleep(OUTAGE_SECONDS)
    hosts.cont(host)


def stopped(hosts: Hosts, job: Job, host: int) -> None:
    hosts.stop(host)


def interrupted(hosts: Hosts, job: Job, host: int) -> None:
    # Like a terminal: to the whole foreground process group.
    os.killpg(job.launchers[host].pid, signal.SIGINT)


def started_late(hosts: Hosts, job: Job, host: int) -> None:
    """Does nothing: the job was started with a late host."""


@dataclass(frozen=True)
class Row:
    """A fault, and its expected outcome.

    Args:
        engine: the strategy.
        act: the fault.
        host: the affected one of the two hosts.
        end_seconds: time limit for all surviving hosts to end, with an error; None if the job continues, with the
            results of one device.
        is_default: whether it runs without `--parity-all`.
    """

    engine: str
    act: Act
    host: int
    end_seconds: float | None
    is_default: bool = False

    @property
    def name(self) -> str:
        return f"{self.engine}-host{self.host}-{self.act.__name__}"


# The launcher gives up a silent node after its default `--node-timeout`, 30.
AT_ONCE, IN_TIME, GOES_ON = 20.0, 45.0, None
ROWS = (
    Row(MULTI_WORKER, dropped, 0, AT_ONCE),
    Row(MULTI_WORKER, dropped, 1, AT_ONCE),
    Row(MULTI_WORKER, cut, 1, IN_TIME),
    Row(MULTI_WORKER, cut_for_a_while, 1, GOES_ON),
    Row(MULTI_WORKER, restarted, 1, GOES_ON),
    Row(MULTI_WORKER, stopped, 0, IN_TIME),
    Row(MULTI_WORKER, stopped, 1, IN_TIME),
    Row(MULTI_WORKER, stopped_for_a_while, 1, GOES_ON),
    Row(MULTI_WORKER, started_late, 1, GOES_ON),
    Row(MULTI_WORKER, interrupted, 0, AT_ONCE),
    Row(MULTI_WORKER, interrupted, 1, AT_ONCE, is_default=True),
    Row(HOROVOD, dropped, 0, AT_ONCE),
    Row(HOROVOD, dropped, 1, AT_ONCE, is_default=True),
    Row(HOROVOD, cut, 1, IN_TIME),
    Row(HOROVOD, cut_for_a_while, 1, GOES_ON),
    Row(HOROVOD, restarted, 1, GOES_ON),
    Row(HOROVOD, stopped, 0, IN_TIME),
    Row(HOROVOD, stopped, 1, IN_TIME),
    Row(HOROVOD, stopped_for_a_while, 1, GOES_ON),
    Row(HOROVOD, started_late, 1, GOES_ON),
    # `horovodrun` runs on the first host only.
    Row(HOROVOD, interrupted, 0, AT_ONCE),
)

#: Names of rows that do not pass yet, with reasons. They run if the environment has KERAS_STRATEGIES_PENDING.
PENDING: dict[str, str] = {}


def _parametrized(row: Row) -> ParameterSet:
    marks = [] if row.is_default else [pytest.mark.parity_all]
    is_left_out = row.name in PENDING and "KERAS_STRATEGIES_PENDING" not in os.environ
    marks += [pytest.mark.skip(PENDING[row.name])] if is_left_out else []
    return pytest.param(row, id=row.name, marks=marks)


@pytest.fixture(scope="module")
def table() -> Iterator[list[Line]]:
    """Yields the list of lines for the table; writes the table if the environment gives a path."""
    lines: list[Line] = []
    yield lines
    if path := os.environ.get("HOST_FAULT_TABLE"):
        Path(path).write_text(written(lines, TIMEOUT_SECONDS))


@pytest.mark.timeout(2 * START_SECONDS + 60)
@pytest.mark.parametrize("row", [_parametrized(row) for row in ROWS])
def test_all_end_or_go_on(row: Row, hosts: Hosts, folder: Path, on_plain_keras: Outcome, table: list[Line]) -> None:
    arguments = ["--seconds-per-step", str(SECONDS_PER_STEP)]
    if row.end_seconds is not None:
        arguments += ["--timeout-seconds", str(TIMEOUT_SECONDS)]
    job = Job(hosts, row.engine, 2, folder, arguments, LATE_SECONDS if row.act is started_late else 0.0)
    job.wait_for_steps(3, START_SECONDS)
    row.act(hosts, job, row.host)
    living = {0, 1} - ({row.host} if row.act in (dropped, stopped) else set())
    ended = job.wait(living, START_SECONDS)
    codes = job.codes(living)
    print(f"{row.name}: {_shown(ended)} s until the end, exit codes {codes}, steps {job.steps()}, {job.reasons()}")
    assert None not in ended.values(), job.output()
    seconds = {} if row.end_seconds is None else ended
    table.append(Line(row.act.__name__, row.engine, row.host, seconds, codes, job.reasons()))
    if row.end_seconds is None:
        assert set(codes) == {0}, job.output()
        difference = compare(on_plain_keras, job.outcome())
        assert difference.largest <= TOLERANCE, difference
        return
    assert not {0, None} & set(codes), job.output()
    assert max(value or 0 for value in ended.values()) <= row.end_seconds, f"{ended}\n{job.output()}"
    if row.act is stopped:
        # A host that returns notices that the job has ended.
        hosts.cont(row.host)
        ended = job.wait([row.host], START_SECONDS)
        print(f"{row.name}: {_shown(ended)} s until the end of what was stopped, exit codes {job.codes([row.host])}")
        assert (ended[row.host] or START_SECONDS) <= row.end_seconds, job.output()
        assert 0 not in job.codes([row.host]), job.output()


@pytest.mark.timeout(2 * START_SECONDS + 60)
def test_a_job_goes_on_without_a_host(hosts: Hosts, folder: Path, on_plain_keras: Outcome) -> None:
    """The job resumes from its last checkpoint, within an epoch, with fewer processes: batches are global."""
    arguments = ["--seconds-per-step", str(SECONDS_PER_STEP), "--saves"]
    restarts = ["--max-restarts", "1", "--min-procs", "1"]
    job = Job(hosts, MULTI_WORKER, 2, folder, arguments, launcher_arguments=restarts)
    # In the second epoch, after a checkpoint within it.
    job.wait_for_steps(13, START_SECONDS)
    hosts.drop(1)
    ended = job.wait([0], START_SECONDS)
    print(f"{_shown(ended)} s until the end, {job.reasons()}")
    assert job.codes([0]) == [0], job.output()
    assert "restart 1 of 1, with 1 process." in job.output(), job.output()
    difference = compare(on_plain_keras, job.outcome())
    assert difference.largest <= TOLERANCE, difference


def _shown(seconds: Mapping[int, float | None]) -> dict[str, float | None]:
    return {f"host{host}": value and round(value, 1) for host, value in seconds.items()}
