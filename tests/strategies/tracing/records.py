"""Records of ranks, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategies.tracing.events import COLLECTIVES, STEPS, RankRecord, Shares, Slice

MS = 10**6


def collective(
    key: str, begin: float, end: float, *, kind: str = "all_reduce", members: Sequence[int] = (0, 1)
) -> Slice:
    """Returns a collective; times are in milliseconds."""
    begin_ns, end_ns = round(begin * MS), round(end * MS)
    return Slice(COLLECTIVES, kind, begin_ns, end_ns, {"axis": "data"}, key, tuple(members), end_ns - begin_ns)


def record(rank: int, *slices: Slice, world_size: int = 2, **fields: Any) -> RankRecord:
    """Returns the record of a rank with one step of 100 ms."""
    step = Slice(STEPS, "step 3", 0, 100 * MS, {"step": 3, "epoch": 0, "count": 1})
    shares = Shares(100 * MS, 50 * MS, 30 * MS, 5 * MS)
    return RankRecord(rank, world_size, "host", ("CPU:0",), (step, *slices), shares, **fields)
