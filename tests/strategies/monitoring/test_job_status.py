"""The status of a job, from literal reports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strategies.monitoring.job_status import VERSION, JobStatus, job_status, read_status
from strategies.monitoring.reports import JobState, LauncherReport, RankProcess, RankReport, to_text
from strategies.monitoring.store import MemoryStore
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK

NOW = 1000.0


def status(
    reports: list[RankReport], launchers: tuple[LauncherReport, ...] = (LAUNCHER,), age: float = 0.25
) -> JobStatus:
    return job_status({report.rank: (report, NOW - age) for report in reports}, launchers, NOW)


def waiting(*shares: float | None, longer: tuple[float | None, ...] = ()) -> JobStatus:
    """Returns the status of ranks that wait for some shares of the last seconds."""
    longer = longer or (None,) * len(shares)
    size = len(shares)
    reports = [
        replace(RANK, rank=rank, world_size=size, waiting_others=now, waiting_others_longer=before)
        for rank, (now, before) in enumerate(zip(shares, longer, strict=True))
    ]
    return status(reports, ())


def test_a_running_job() -> None:
    job = status([RANK, OTHER])
    assert (job.state, job.world_size, job.num_restarts, job.max_restarts) == ("running", 2, 1, 3)
    assert (job.epoch, job.epochs, job.step, job.steps_per_epoch, job.total_steps) == (3, 10, 50, 100, 250)
    assert (job.fraction, job.seconds_left, job.units_per_second, job.unit) == (0.25, 75.0, 1280.0, "images")
    assert (job.checkpoint, job.checkpoint_step, job.checkpoint_age_seconds) == ('run/"last"', 200, 5.0)
    assert (job.round_seconds, job.restart_reason) == (100.0, LAUNCHER.reason)
    assert [(rank.rank, rank.state, rank.is_alive, rank.age_seconds) for rank in job.ranks] == [
        (0, "fit", True, 0.25),
        (1, "fit", True, 0.25),
    ]


def test_it_survives_json() -> None:
    job = status([RANK, OTHER])
    assert JobStatus.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert job.version == VERSION


def test_fields_of_newer_servers_are_left_out() -> None:
    job = status([RANK])
    received = json.loads(json.dumps(job.to_json())) | {"new": 1}
    received["ranks"][0] |= {"new": 2, "report": received["ranks"][0]["report"] | {"new": 3}}
    assert JobStatus.from_json(received) == job
    with pytest.raises(ValueError, match="Not a JobStatus"):
        JobStatus.from_json({"new": 1})


@pytest.mark.parametrize(
    ("process", "state", "is_alive"),
    [
        (RankProcess(1, 42, status=-9), "killed by SIGKILL (9)", False),
        (RankProcess(1, 42, status=-99), "killed by signal 99", False),
        (RankProcess(1, 42, status=75), "exit code 75", False),
        (RankProcess(1, 42, is_stopped=True), "stopped", True),
        (RankProcess(1, 42), "fit", True),
    ],
)
def test_what_a_launcher_knows_of_a_process(process: RankProcess, state: str, is_alive: bool) -> None:
    launcher = replace(LAUNCHER, processes=(LAUNCHER.processes[0], process))
    rank = status([RANK, OTHER], (launcher,)).ranks[1]
    assert (rank.state, rank.is_alive, rank.report) == (state, is_alive, OTHER)


def test_ranks_that_have_not_reported() -> None:
    job = status([RANK])
    assert (job.state, job.ranks[1].state, job.ranks[1].is_alive) == ("starting", "starting", True)
    # Without our launcher, nothing is known of a rank before its first report.
    job = status([RANK], ())
    assert (job.world_size, job.ranks[1].state, job.ranks[1].is_alive) == (2, "starting", False)
    assert status([], ()).state == "starting"


def test_a_silent_rank_is_said_to_be_silent() -> None:
    assert [rank.state for rank in status([RANK, OTHER], age=7.0).ranks] == ["silent for 7 s"] * 2


def test_between_calls() -> None:
    states = [rank.state for rank in status([replace(RANK, call=""), replace(OTHER, call="", total_steps=0)]).ranks]
    assert states == ["between calls", "starting"]


@pytest.mark.parametrize(
    ("state", "expected"), [(JobState.STOPPING, "stopping"), (JobState.ENDED, "ended"), (JobState.RUNNING, "running")]
)
def test_the_state_of_the_launcher(state: JobState, expected: str) -> None:
    assert status([RANK, OTHER], (replace(LAUNCHER, state=state),)).state == expected


class TestStragglers:
    def test_one_rank_holds_up_all_others(self) -> None:
        job = waiting(0.9, 1.0, 0.05, 0.9)
        assert job.stragglers == (2,)
        assert [rank.is_straggler for rank in job.ranks] == [False, False, True, False]

    def test_of_two(self) -> None:
        assert waiting(0.0, 0.95).stragglers == (0,)

    def test_few_samples_must_be_extreme(self) -> None:
        assert waiting(0.5, 0.5, 0.0, 0.6).stragglers == ()
        assert waiting(0.9, 0.9, 0.4, 0.9).stragglers == ()

    def test_many_samples_need_not(self) -> None:
        assert waiting(0.5, 0.5, 0.0, 0.6, longer=(0.5, 0.5, 0.1, 0.6)).stragglers == (2,)

    def test_no_more_than_half_of_the_ranks(self) -> None:
        assert waiting(0.0, 0.0, 0.0, 1.0).stragglers == ()

    def test_nothing_is_said_while_a_rank_is_not_known(self) -> None:
        assert waiting(0.9, None, 0.0).stragglers == ()
        assert waiting().stragglers == ()

    @pytest.mark.parametrize("is_current", [True, False])
    def test_rare_samples_say_nothing_of_the_last_moments(self, is_current: bool) -> None:
        """As on GPUs, where one or two samples of equal ranks often differ."""
        reports = [replace(RANK, waiting_others=0.0), replace(OTHER, waiting_others=1.0)]
        reports = [replace(report, waiting_is_current=is_current) for report in reports]
        assert status(reports).stragglers == ((0,) if is_current else ())
        longer = zip(reports, (0.1, 0.8), strict=True)
        assert status([replace(each, waiting_others_longer=share) for each, share in longer]).stragglers == (0,)

    def test_a_silent_rank_holds_up_the_others(self) -> None:
        """The last report of a process that was stopped, as by SIGSTOP, is from before."""
        reports = {0: (replace(RANK, waiting_others=1.0), NOW), 1: (replace(OTHER, waiting_others=0.4), NOW - 9)}
        assert job_status(reports, (), NOW).stragglers == (1,)


def test_what_is_no_report_is_left_out() -> None:
    store = MemoryStore()
    for rank, text in enumerate([to_text(RANK), "{", '{"rank": 1}', "[" * 100_000]):
        store.post("rank", rank, text)
    job = read_status(store, NOW)
    assert [rank.report for rank in job.ranks] == [RANK, None]
