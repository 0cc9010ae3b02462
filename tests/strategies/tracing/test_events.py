"""Records as text, and their limit."""

import pytest

from strategies.tracing.events import COLLECTIVES, COMPUTING, RankRecord, Slice, limited
from tests.strategies.tracing.records import collective, record


def test_a_record_survives_as_text() -> None:
    slices = (collective("a#0", 1, 2), Slice(COMPUTING, "forward", 5, 6), Slice("stage 0", "0F0", 7, 8, {"stage": 0}))
    own = record(1, *slices, clock="c", wall=3, measured=(4, 5), num_dropped=6, notes=("n",))
    text = own.to_text()
    assert "\n" not in text
    assert RankRecord.from_text(text) == own
    assert RankRecord.from_text(record(0).to_text()) == record(0)


def test_another_version_is_refused() -> None:
    text = record(0).to_text().replace('"version":1', '"version":99')
    with pytest.raises(ValueError, match=r"has version 99, this package reads version 1.*Received"):
        RankRecord.from_text(text)


def test_the_shortest_times_of_computing_are_dropped_first() -> None:
    computing = [Slice(f"replica 1, {COMPUTING}", "forward", i, 2 * i) for i in range(10, 0, -1)]
    found, num_dropped = limited([*computing, Slice(COLLECTIVES, "all_reduce", 3, 4)], 4)
    assert num_dropped == 7
    assert [(each.begin, each.end) for each in found] == [(3, 4), (8, 16), (9, 18), (10, 20)]
    assert limited(found, 4) == (found, 0)
