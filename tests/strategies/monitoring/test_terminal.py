"""The page of the terminal, written out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.monitoring.job_status import job_status
from strategies.monitoring.reports import RankProcess
from strategies.monitoring.terminal import duration, number, share, size, terminal_lines
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK


def test_a_job_with_a_slow_rank_and_one_that_was_killed() -> None:
    third = replace(RANK, rank=2, waiting_others=0.0, device_memory_bytes=None)
    processes = (RankProcess(0, 41), RankProcess(1, 42, status=-9), RankProcess(2, 43))
    launcher = replace(LAUNCHER, world_size=4, processes=processes)
    reports = {0: (replace(RANK, waiting_others=0.9), 1000.0), 1: (OTHER, 1000.0), 2: (third, 1000.0)}
    assert terminal_lines(job_status(reports, [launcher], 1000.0)) == [
        "job       starting, 4 ranks, restarts: 1 of 3, started 1 min 40 s ago",
        "last restart: rank 1 (pid 40) failed with signal SIGKILL (9); restart 1 of 3, with 2 processes.",
        "progress  [########......................] 25%, epoch 3 of 10, step 50 of 100, 1 min 15 s left",
        "speed     1,280 images/s, 10 steps/s",
        'saved     run/"last", after step 200, 5 s ago',
        "SLOW      the others wait for rank 2",
        "",
        "rank  host    state                  steps  input  others    memory       GPU",
        "   0  node-a  fit                      250   12 %    90 %  1.50 GiB  8.00 GiB",
        "   1  node-a  killed by SIGKILL (9)    250   12 %    25 %  1.50 GiB  8.00 GiB",
        "   2  node-a  fit                      250   12 %     0 %  1.50 GiB         -  SLOW",
        "   3  -       starting                   -      -       -         -         -",
    ]


def test_nothing_moves_the_cursor() -> None:
    saved = replace(RANK, host="a\x07", checkpoint="run/\x1b[2J\n\u202e", checkpoint_step=1, checkpoint_age_seconds=0.0)
    lines = terminal_lines(job_status({0: (saved, 1000.0)}, [replace(LAUNCHER, reason="\x1b]0;x\x07")], 1000.0))
    assert all(line.isprintable() for line in lines)
    assert r"run/\x1b[2J\n\u202e" in "\n".join(lines)


def test_a_job_that_has_not_begun() -> None:
    assert terminal_lines(job_status({}, [], 1000.0))[0] == "job       starting, 0 ranks"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
        (360000, "4 d 04 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_numbers() -> None:
    assert [share(None), share(0.374), size(None), size(2**30)] == ["-", "37 %", "-", "1.00 GiB"]
    assert [number(None), number(12345.6), number(0.01234), number(99.96)] == ["-", "12,346", "0.0123", "100"]
