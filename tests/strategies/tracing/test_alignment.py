"""Clocks of several hosts, brought to one."""

import dataclasses
from typing import Any

import pytest

from strategies.tracing.alignment import aligned
from strategies.tracing.events import RankRecord
from tests.strategies.tracing.records import MS, collective, record

OFFSET = 5000 * MS


def late(own: RankRecord, **fields: Any) -> RankRecord:
    """Returns a record by a clock that is behind by `OFFSET`."""
    slices = tuple(each.shifted(-OFFSET) for each in own.slices)
    return dataclasses.replace(own, slices=slices, clock="other", **fields)


def test_ranks_of_one_host_have_one_clock() -> None:
    first, second = record(0, collective("a#0", 1, 3), clock="c"), record(1, collective("a#0", 2, 3), clock="c")
    assert aligned([second, first]) == (first, second)
    assert aligned([]) == ()


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_by_the_collectives_that_were_recorded(kind: str) -> None:
    """Nobody leaves before all have entered: rank 1 enters last to one, rank 0 to the other."""
    first = record(0, collective("a#0", 10, 20, kind=kind), collective("a#1", 40, 41, kind=kind), clock="c")
    second = record(1, collective("a#0", 18, 21, kind=kind), collective("a#1", 30, 42, kind=kind))
    found = aligned([first, late(second)])[1]
    # By a#0 at most 2 ms too much, by a#1 at most 2 ms too little.
    assert found.offset == OFFSET
    assert found.clock_error == 2 * MS + 1
    assert found.slices == second.slices


def test_by_messages_in_both_directions() -> None:
    sent = [collective("s#0", 10, 11, kind="send"), collective("r#0", 5, 22, kind="receive")]
    received = [collective("s#0", 0, 12, kind="receive of x"), collective("r#0", 20, 21, kind="send of x")]
    found = aligned([record(0, *sent, clock="c"), late(record(1, *received))])[1]
    assert (found.offset, found.clock_error) == (OFFSET, 2 * MS + 1)


def test_barriers_narrow_it() -> None:
    first, second = (record(rank, collective("a#0", 10, 20), clock="c") for rank in range(2))
    found = aligned([first, late(second, measured=(OFFSET + MS, MS + MS // 2))])[1]
    assert (found.offset, found.clock_error) == (OFFSET + MS, MS + MS // 2 + 1)


def test_without_a_common_collective_the_time_of_day_is_taken() -> None:
    first = record(0, collective("a#0", 10, 20), clock="c", wall=7 * MS)
    found = aligned([first, late(record(1), wall=7 * MS + OFFSET - 3)])[1]
    assert found.offset == -(OFFSET - 3)
    assert "could not be compared" in found.notes[-1]
