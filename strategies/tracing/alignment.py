"""Brings the times of all ranks to one clock. Pure.

Processes of one host read the same clock. Between hosts, barriers before the recorded steps bound the difference of two
clocks, and so does what was recorded: no rank leaves an all-reduce before all have entered it, and no message arrives
before it is sent. So even ranks that were asked one by one, without a barrier, come to one clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from strategies.tracing.events import RankRecord, Slice

#: Collectives that end on no rank before all ranks have entered them.
_SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_SEND, _RECEIVE = "send", "receive"


def aligned(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """Returns the records by rank, with times by the clock of the lowest rank, normally rank 0, and their errors."""
    ordered = sorted(records, key=lambda record: record.rank)
    if not ordered:
        return ()
    first = ordered[0]
    offsets: dict[str, tuple[int, int | None]] = {first.clock: (0, 0)}
    for record in ordered:
        if record.clock not in offsets:
            theirs = [each for each in ordered if each.clock == record.clock]
            reference = [each for each in ordered if each.clock == first.clock]
            offsets[record.clock] = _offset(theirs, reference) or (first.wall - record.wall, None)
    return tuple(_moved(record, *offsets[record.clock]) for record in ordered)


def _moved(record: RankRecord, offset: int, error: int | None) -> RankRecord:
    slices = tuple(each.shifted(offset) for each in record.slices)
    notes = record.notes
    if error is None:
        error = 0
        notes += (
            "its clock could not be compared with that of the first rank: the time of day of both hosts was taken, "
            "and arrows between the two may be wrong.",
        )
    return replace(record, slices=slices, offset=offset, clock_error=error + record.clock_error, notes=notes)


def _offset(records: Sequence[RankRecord], reference: Sequence[RankRecord]) -> tuple[int, int] | None:
    """Returns what to add to the clock of some ranks to get that of others, and its error; None if it is unbounded."""
    least, most = [], []
    for record in records:
        if record.measured is not None and reference[0].rank == 0:
            offset, error = record.measured
            least.append(offset - error)
            most.append(offset + error)
    ours, theirs = _by_key(records), _by_key(reference)
    for key in ours.keys() & theirs.keys():
        for own in ours[key]:
            for other in theirs[key]:
                if _waits_for(own, other):
                    least.append(other.begin - own.end)
                if _waits_for(other, own):
                    most.append(other.end - own.begin)
    if not (least and most):
        return None
    low, high = max(least), min(most)
    return (low + high) // 2, abs(high - low) // 2 + 1


def _waits_for(receiver: Slice, sender: Slice) -> bool:
    """Returns True if `receiver` cannot end before `sender` has begun."""
    kind, other = (each.name.partition(" ")[0] for each in (receiver, sender))
    return kind in _SYNCHRONIZING or (kind == _RECEIVE and other == _SEND)


def _by_key(records: Sequence[RankRecord]) -> dict[str, list[Slice]]:
    found: dict[str, list[Slice]] = defaultdict(list)
    for record in records:
        for each in record.slices:
            if each.key:
                found[each.key].append(each)
    return found
