"""Checks of every trace: its structure, and the order of events on different ranks."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from strategies.tracing.collective_runs import collective_runs
from strategies.tracing.job_trace import JobTrace

_SYNCHRONIZING = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")


def read_valid(path: Path, num_ranks: int) -> dict[str, Any]:
    """Returns the file of a trace, after checks of its structure."""
    trace: dict[str, Any] = json.loads(path.read_text())
    events = trace["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.partition(" (")[0] for name in processes] == [f"rank {rank}" for rank in range(num_ranks)]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in slices) == 0
    by_thread = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert by_thread.keys() == threads.keys()
    for name, own in by_thread.items():
        # To within a nanosecond: the numbers are microseconds.
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in itertools.pairwise(own)), threads[name]
    for rank in range(num_ranks):
        assert any(owner == rank and name == "steps" for (owner, _), name in threads.items())
    _check_flows(events, slices)
    return trace


def _check_flows(events: list[dict[str, Any]], slices: list[dict[str, Any]]) -> None:
    begins = {(event["pid"], event["tid"], event["ts"]) for event in slices}
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            assert (event["pid"], event["tid"], event["ts"]) in begins
            flows[event["id"]].append(event)
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)


def check_collectives(trace: JobTrace) -> None:
    """Checks that collectives are on all their ranks, and that none leaves one before all have entered it."""
    found = collective_runs(trace.records)
    keys = {each.key for each in found}
    for record in trace.records:
        for each in record.slices:
            assert each.key in keys or len(each.members) < 2, (record.rank, each)
    assert found
    for run in found:
        assert run.is_complete, run.key
        kinds = {own.name.partition(" ")[0] for own in run.by_rank.values()}
        ends = [own.end for own in run.by_rank.values()]
        begins = [own.begin for own in run.by_rank.values()]
        if kinds <= set(_SYNCHRONIZING):
            assert min(ends) >= max(begins) - run.clock_error, run.key


def names_on(trace: JobTrace, track: str, rank: int = 0) -> list[str]:
    """Returns the names of the slices of a track, in the order in which they began."""
    return [each.name for each in trace.records[rank].slices if each.track == track]
