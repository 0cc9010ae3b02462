"""The same collective on several ranks."""

from strategies.tracing.collective_runs import collective_runs, count_last
from tests.strategies.tracing.records import MS, collective, record


def test_who_came_last() -> None:
    first = record(
        0,
        collective("a#0", 1, 9),
        collective("a#1", 20, 25),
        collective("b#0", 30, 40),
        collective("s#0", 1, 2, kind="send"),
    )
    second = record(
        1,
        collective("a#0", 8, 9),
        collective("a#1", 20.01, 25),
        collective("b#0", 28, 40),
        collective("s#0", 0, 2, kind="receive"),
    )
    found = collective_runs([first, second])
    assert [each.key for each in found] == ["s#0", "a#0", "a#1", "b#0"]
    # a#1 is too close to tell; a message does not count.
    assert [each.last for each in found[1:]] == [1, None, 0]
    assert found[1].ranks == [0, 1]
    assert found[1].lateness == 7 * MS
    assert count_last(found) == ({1: 1, 0: 1}, {1: 7 * MS, 0: 2 * MS}, 3)


def test_the_error_of_clocks_counts_between_hosts() -> None:
    def ranks(other: str) -> list[int | None]:
        records = [
            record(0, collective("a#0", 1, 9), clock="c"),
            record(1, collective("a#0", 3, 9), clock=other, clock_error=4 * MS),
        ]
        return [each.last for each in collective_runs(records)]

    assert ranks("c") == [1]
    assert ranks("d") == [None]


def test_only_complete_collectives_count() -> None:
    members = (0, 1, 2)
    records = [record(rank, collective("a#0", rank, 9, members=members), world_size=3) for rank in range(3)]
    assert count_last(collective_runs(records[:2])) == ({}, {}, 0)
    assert count_last(collective_runs(records))[0] == {2: 1}
    assert collective_runs(records[:1]) == []


def test_a_rank_that_computes_meanwhile_does_not_wait() -> None:
    import dataclasses

    busy = dataclasses.replace(collective("a#0", 1, 9), idle=2 * MS)
    [found] = collective_runs([record(0, busy), record(1, collective("a#0", 8, 9))])
    assert found.lateness == 2 * MS
