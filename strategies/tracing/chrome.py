"""Writes a trace in the format of Chrome's ``about:tracing``, which Perfetto opens. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strategies.tracing.collective_runs import CollectiveRun
from strategies.tracing.events import COLLECTIVES, COMPUTING, INPUT, STEPS, RankRecord, Slice
from strategies.tracing.lanes import in_lanes

_ORDER = (STEPS, INPUT, COLLECTIVES)


def trace_events(records: Sequence[RankRecord], found: Sequence[CollectiveRun]) -> list[dict[str, Any]]:
    """Returns the events: a process for each rank, a thread for each of its tracks, flows along each collective.

    Times are microseconds since the first event, to the nanosecond.

    Args:
        records: the ranks' records.
        found: the collectives of several ranks.
    """
    zero = min((each.begin for record in records for each in record.slices), default=0)
    by_key = {each.key: each for each in found}
    events: list[dict[str, Any]] = []
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for record in records:
        rank = record.rank
        where = ", ".join([record.host, *record.devices])
        events.append(_metadata("process_name", rank, 0, {"name": f"rank {rank} ({where})"}))
        events.append(_metadata("process_sort_index", rank, 0, {"sort_index": rank}))
        for thread, (name, own) in enumerate(_threads(record)):
            events.append(_metadata("thread_name", rank, thread, {"name": name}))
            events.append(_metadata("thread_sort_index", rank, thread, {"sort_index": thread}))
            for each in own:
                if each.key:
                    places[each.key, rank] = (thread, each.begin)
                details = {**each.details, **_of_run(by_key.get(each.key), rank)}
                events.append(
                    {
                        "name": each.name,
                        "cat": _category(each.track),
                        "ph": "X",
                        "ts": (each.begin - zero) / 1000,
                        "dur": (each.end - each.begin) / 1000,
                        "pid": rank,
                        "tid": thread,
                        "args": details,
                    }
                )
    return [*events, *_flows(found, places, zero)]


def _threads(record: RankRecord) -> Iterator[tuple[str, list[Slice]]]:
    """Yields the names of a rank's threads, and their slices; slices of a thread do not overlap."""
    tracks: dict[str, list[Slice]] = defaultdict(list)
    for each in record.slices:
        tracks[each.track].append(each)
    rest = sorted(set(tracks) - set(_ORDER), key=lambda name: (COMPUTING in name, name))
    for track in [*_ORDER[:2], *rest, *_ORDER[2:]]:
        lanes: dict[int, list[Slice]] = defaultdict(list)
        for lane, each in in_lanes(tracks.get(track, [])):
            lanes[lane].append(each)
        for lane, own in sorted(lanes.items()):
            yield track if lane == 0 else f"{track} ({lane + 1})", own


def _of_run(run: CollectiveRun | None, rank: int) -> dict[str, str | int | float]:
    if run is None:
        return {}
    last = run.ranks[-1]
    own, latest = run.by_rank[rank].begin, run.by_rank[last].begin
    found: dict[str, str | int | float] = {"last to come": "cannot tell" if run.last is None else f"rank {last}"}
    found["came before the last, ms"] = (latest - own) / 1e6
    found["computed nothing, ms"] = run.by_rank[rank].idle / 1e6
    if not run.is_complete:
        found["recorded by"] = ", ".join(f"rank {each}" for each in sorted(run.by_rank))
    return found


def _flows(
    found: Sequence[CollectiveRun], places: Mapping[tuple[str, int], tuple[int, int]], zero: int
) -> Iterator[dict[str, Any]]:
    """Yields arrows from the first rank that comes to a collective over the others to the last."""
    for number, run in enumerate(found):
        ranks = run.ranks
        for index, rank in enumerate(ranks):
            thread, begin = places[run.key, rank]
            event = {"name": "collective", "cat": "collective", "id": number, "pid": rank, "tid": thread}
            event |= {"ph": "s" if index == 0 else "f" if rank == ranks[-1] else "t", "ts": (begin - zero) / 1000}
            yield event | ({"bp": "e"} if event["ph"] == "f" else {})


def _category(track: str) -> str:
    return next((name for name in (STEPS, INPUT, COLLECTIVES, COMPUTING) if track.endswith(name)), "stages")


def _metadata(name: str, rank: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": arguments}
