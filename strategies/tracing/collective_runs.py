"""Runs of collectives over all of their ranks tell when each rank came, and who came last. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strategies.tracing.events import RankRecord, Slice

# A receive begins as early as it can, long before its message is needed.
_ONE_WAY = ("send", "receive")
# The beginning of a collective is that of an operation beside it.
_LEAST_DIFFERENCE = 20_000


@dataclass(frozen=True)
class CollectiveRun:
    """One run of a collective.

    Attributes:
        key: the key of its slices.
        by_rank: the slices of the ranks that have recorded it.
        clock_error: the largest error of the difference of two of its times.
        is_complete: True if all its ranks have recorded it.
    """

    key: str
    by_rank: Mapping[int, Slice]
    clock_error: int
    is_complete: bool

    @property
    def ranks(self) -> list[int]:
        """The ranks, in the order in which they came."""
        return sorted(self.by_rank, key=lambda rank: self.by_rank[rank].begin)

    @property
    def is_one_way(self) -> bool:
        """True for a message between two ranks: only the receiver waits for the other."""
        return any(each.name.partition(" ")[0] in _ONE_WAY for each in self.by_rank.values())

    @property
    def last(self) -> int | None:
        """The rank that came last; None if two came so close together that clocks cannot tell."""
        *_, second, last = self.ranks
        return last if self.by_rank[last].begin - self.by_rank[second].begin > self.clock_error else None

    @property
    def lateness(self) -> int:
        """The longest time for which a rank waited for the last and computed nothing, at most."""
        latest = max(each.begin for each in self.by_rank.values())
        return max(min(latest - each.begin, each.idle) for each in self.by_rank.values())


def collective_runs(records: Iterable[RankRecord]) -> list[CollectiveRun]:
    """Returns the collectives that at least two ranks have recorded, in the order of their first ranks."""
    by_key: dict[str, dict[int, Slice]] = defaultdict(dict)
    clocks: dict[int, tuple[str, int]] = {}
    for record in records:
        clocks[record.rank] = (record.clock, record.clock_error)
        for each in record.slices:
            if each.key:
                by_key[each.key][record.rank] = each
    found = []
    for key, by_rank in by_key.items():
        if len(by_rank) > 1:
            members = next(iter(by_rank.values())).members
            error = _error([clocks[rank] for rank in by_rank])
            found.append(CollectiveRun(key, by_rank, error, set(members) == set(by_rank)))
    return sorted(found, key=lambda each: min(own.begin for own in each.by_rank.values()))


def _error(clocks: Iterable[tuple[str, int]]) -> int:
    """Returns the largest error of the difference of two clocks; processes of one host have the same clock."""
    by_clock = dict(clocks)
    return _LEAST_DIFFERENCE + (sum(sorted(by_clock.values())[-2:]) if len(by_clock) > 1 else 0)


def count_last(found: Sequence[CollectiveRun]) -> tuple[dict[int, int], dict[int, int], int]:
    """Returns how often each rank came last, for how long others waited for it, and the number of collectives counted.

    Messages between two ranks do not count.
    """
    times: dict[int, int] = defaultdict(int)
    waited: dict[int, int] = defaultdict(int)
    counted = [each for each in found if each.is_complete and not each.is_one_way]
    for each in counted:
        if each.last is not None:
            times[each.last] += 1
            waited[each.last] += each.lateness
    return dict(times), dict(waited), len(counted)
