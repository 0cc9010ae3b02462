"""The summary of a trace, as lines of text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from strategies.text_table import text_table
from strategies.tracing.collective_runs import CollectiveRun, count_last
from strategies.tracing.events import STEPS, RankRecord


def lines(records: Sequence[RankRecord], found: Sequence[CollectiveRun]) -> list[str]:
    """Returns a table of the ranks' times, and sentences about collectives, clocks and what is missing."""
    heading = ("", "steps", "mean step", "computing", "in collectives", "waiting for input", "other", "came last")
    times, waited, num_counted = count_last(found)
    rows = [heading, *(_row(record, times.get(record.rank, 0), num_counted) for record in records)]
    said = text_table(rows)
    if times:
        most = max(times, key=lambda rank: (times[rank], waited[rank]))
        said.append(
            f"Rank {most} came last to {times[most]} of {num_counted} collectives; "
            f"another rank waited for it and computed nothing for up to {waited[most] / times[most] / 1e6:.1f} ms, on "
            "average."
        )
    elif num_counted:
        said.append(f"The ranks came to all {num_counted} collectives at the same time, as far as clocks can tell.")
    if len({record.clock for record in records}) > 1:
        error = max(record.clock_error for record in records)
        said.append(f"Times are by the clock of rank {records[0].rank}, to within {error / 1e6:.3f} ms.")
    elif len(records) > 1:
        said.append("All ranks are on one host, with one clock.")
    missing = records[0].world_size - len(records) if records else 0
    if missing:
        said.append(f"{missing} of {records[0].world_size} ranks sent no record.")
    for record in records:
        if record.num_dropped:
            said.append(
                f"Rank {record.rank}: {record.num_dropped} events left out, the shortest times of computing first."
            )
        said += [f"Rank {record.rank}: {note}" for note in record.notes]
    return said


def _row(record: RankRecord, num_last: int, num_counted: int) -> tuple[str, ...]:
    steps = [each for each in record.slices if each.track == STEPS]
    mean = f"{statistics.fmean(each.end - each.begin for each in steps) / 1e6:.1f} ms" if steps else "none"
    shares = record.shares
    parts = (shares.computing, shares.collectives, shares.input, shares.other)
    shown = [f"{part / shares.whole:.0%}" if shares.whole else "none" for part in parts]
    count = sum(int(each.details.get("count", 1)) for each in steps)
    return (f"rank {record.rank}", str(count), mean, *shown, f"{num_last} of {num_counted}" if num_counted else "")
