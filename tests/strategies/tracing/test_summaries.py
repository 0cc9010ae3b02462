"""The summary of a trace."""

from strategies.tracing import summaries
from strategies.tracing.collective_runs import collective_runs
from strategies.tracing.events import RankRecord
from tests.strategies.tracing.records import MS, collective, record


def lines(*records: RankRecord) -> list[str]:
    return summaries.lines(records, collective_runs(records))


def test_a_slow_rank() -> None:
    assert lines(record(0, collective("a#0", 10, 30)), record(1, collective("a#0", 25, 31))) == [
        "        steps  mean step  computing  in collectives  waiting for input  other  came last",
        "rank 0      1   100.0 ms        50%             30%                 5%    15%     0 of 1",
        "rank 1      1   100.0 ms        50%             30%                 5%    15%     1 of 1",
        "Rank 1 came last to 1 of 1 collectives; another rank waited for it and computed nothing for up to 15.0 ms, on "
        "average.",
        "All ranks are on one host, with one clock.",
    ]


def test_what_is_missing_is_said() -> None:
    found = lines(
        record(0, collective("a#0", 10, 30), world_size=3, clock="c", notes=("a note.",)),
        record(2, collective("a#0", 10, 30), world_size=3, clock="d", clock_error=MS, num_dropped=7),
    )
    assert found[3:] == [
        "Times are by the clock of rank 0, to within 1.000 ms.",
        "1 of 3 ranks sent no record.",
        "Rank 0: a note.",
        "Rank 2: 7 events left out, the shortest times of computing first.",
    ]


def test_nobody_came_last() -> None:
    found = lines(record(0, collective("a#0", 10, 30)), record(1, collective("a#0", 10, 31)))
    assert found[3] == "The ranks came to all 1 collectives at the same time, as far as clocks can tell."
    assert len(lines(record(0, world_size=1))) == 2
