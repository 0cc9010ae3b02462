"""A dry run as text, by groups of ranks that run the same program, and as JSON with all ranks and operations."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from strategies.planning.dry_run.operations import Operation, OperationKind
from strategies.planning.dry_run.run import DryRun
from strategies.text_table import text_table

_GB, _MB = 1e9, 1e6


def as_text(run: DryRun, *, lists_ranks: bool = False) -> str:
    """Returns a summary.

    Args:
        run: the dry run.
        lists_ranks: whether to add a line for each rank.
    """
    parts = [[_heading(run)], _positions(run), _axes(run), _operations(run)]
    if lists_ranks:
        parts.append(_ranks(run))
    parts.append([_order(run), *_findings(run)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def _heading(run: DryRun) -> str:
    job, layout, ranks = run.job, run.job.layout, run.placement.num_ranks
    hosts = len(set(run.placement.hosts))
    mesh = ", ".join(f"{name}={size}" for name, size in job.mesh.items())
    rows = "row" if layout.microbatch_size == 1 else "rows"
    more = "".join(
        [
            f", shard={layout.shard!r}" if layout.shard else "",
            ", recomputation" if layout.recompute else "",
            ", sequence parallelism" if layout.sequence_parallel else "",
        ]
    )
    return (
        f"{_counted(ranks, 'rank')} on {_counted(hosts, 'host')}, mesh {mesh}: {job.schedule.name} with "
        f"{job.num_microbatches} micro-batches of {layout.microbatch_size} {rows}{more}."
    )


def _positions(run: DryRun) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("pipe", "ranks", "hosts", "stages", "blocks", "operations", "GB sent", "GB held", "idle")
    ]
    for position, sizes in enumerate(run.positions):
        ranks = [rank for rank in range(run.placement.num_ranks) if run.placement.position(rank, "pipe") == position]
        sent = sum(_bytes_sent(run, each) for each in run.programs[position])
        rows.append(
            (
                str(position),
                f"{ranges(ranks)} ({len(ranks)})",
                ranges(run.placement.host(rank) for rank in ranks),
                ", ".join(map(str, sizes.stages)),
                " + ".join(map(str, sizes.blocks)),
                f"{len(run.programs[position]):,}",
                f"{sent / _GB:.2f}",
                f"{sizes.num_bytes / _GB:.1f}",
                f"{sizes.idle:.1%}",
            )
        )
    return text_table(rows, left=(0, 1, 2, 3, 4))


def _axes(run: DryRun) -> list[str]:
    placement, traffic = run.placement, run.traffic
    rows: list[tuple[str, ...]] = [
        ("axis", "groups", "members", "first group", "hosts", "groups of a host", "GB inside hosts", "GB between hosts")
    ]
    for axis, size in placement.mesh.axes.items():
        if size == 1:
            continue
        groups = placement.groups(axis)
        hosts = max(len({placement.host(rank) for rank in group}) for group in groups)
        crossing = max((each.get(axis, 0) for each in traffic.groups_of_host.values()), default=0)
        numbers = (traffic.inside.get(axis, 0) / _GB, traffic.between.get(axis, 0) / _GB)
        shown = (axis, str(len(groups)), str(size), ranges(groups[0]), str(hosts), str(crossing))
        rows.append((*shown, *(f"{each:,.1f}" for each in numbers)))
    busiest = traffic.busiest
    last = "Nothing is sent between hosts."
    if busiest is not None:
        (source, target), num_bytes = busiest
        last = f"The busiest link is that from host {source} to host {target}: {num_bytes / _GB:,.1f} GB in a step."
    return [*(text_table(rows, left=(0, 3)) if len(rows) > 1 else []), last]


def _operations(run: DryRun) -> list[str]:
    """Returns a table of the operations of the position with the most, by kind, axis and bytes."""
    position = max(range(len(run.programs)), key=lambda each: len(run.programs[each]))
    counted = Counter(
        (each.kind, each.axis, each.num_bytes)
        for each in run.programs[position]
        if each.kind is not OperationKind.COMPUTE
    )
    rows: list[tuple[str, ...]] = [(f"operations of pipe {position}", "axis", "number", "MB each")]
    by_kind: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for (kind, axis, num_bytes), number in counted.items():
        by_kind.setdefault((kind.value, axis), []).append((num_bytes, number))
    for (name, axis), found in by_kind.items():
        sizes = [size / _MB for size, _ in found]
        shown = f"{min(sizes):.3g}" if len(sizes) == 1 else f"{min(sizes):.3g} to {max(sizes):.3g}"
        rows.append((name, axis, f"{sum(number for _, number in found):,}", shown))
    return text_table(rows, left=(0, 1)) if len(rows) > 1 else ["The ranks exchange nothing."]


def _ranks(run: DryRun) -> list[str]:
    mesh = run.placement.mesh
    rows: list[tuple[str, ...]] = [("rank", "host", "device", *mesh.axis_names)]
    for rank in range(run.placement.num_ranks):
        at = mesh.coordinates(rank)
        rows.append((str(rank), str(run.placement.host(rank)), run.placement.device(rank), *map(str, at.values())))
    return text_table(rows, left=())


def _order(run: DryRun) -> str:
    number = f"{run.execution.num_operations:,} operations of {_counted(run.placement.num_ranks, 'rank')}"
    if run.deadlock is None:
        return f"No deadlock: all {number} end, also if each send waits for its receive."
    return f"Deadlock among {number}: {run.deadlock}"


def _findings(run: DryRun) -> list[str]:
    return list(run.imbalances) or ["No imbalance of more than 10 %."]


def _bytes_sent(run: DryRun, operation: Operation) -> float:
    axis = operation.axis
    return operation.bytes_sent(run.placement.mesh.axis_size(axis)) if axis else 0.0


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(numbers: Iterable[int], most: int = 2) -> str:
    """Returns numbers as the first few ranges: "0-7, 64-71, ..."; with a step if they are evenly spaced."""
    ordered = sorted(set(numbers))
    steps = {after - before for before, after in itertools.pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}, {ordered[1]}, ... {ordered[-1]}"
    found: list[list[int]] = []
    for number in ordered:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    shown = ["-".join(map(str, each)) for each in found]
    return ", ".join(shown[:most]) + (f", ... {shown[-1]}" if len(shown) > most else "")


def as_json(run: DryRun) -> str:
    """Returns everything: ranks, groups, the programs by position along "pipe", bytes, and findings."""
    placement = run.placement
    ranks = [
        {
            "rank": rank,
            "host": placement.host(rank),
            "device": placement.device(rank),
            "coordinates": placement.mesh.coordinates(rank),
        }
        for rank in range(placement.num_ranks)
    ]
    found: dict[str, Any] = {
        "job": {
            "mesh": dict(run.job.mesh),
            "schedule": run.job.schedule.name,
            "num_microbatches": run.job.num_microbatches,
            "layout": asdict(run.job.layout),
            "stages": run.job.stages,
        },
        "ranks": ranks,
        "groups": {axis: placement.groups(axis) for axis in placement.mesh.axis_names},
        "positions": [asdict(each) for each in run.positions],
        "programs": [list(map(_operation_as_json, program)) for program in run.programs],
        "bytes": {
            "inside_hosts": run.traffic.inside,
            "between_hosts": run.traffic.between,
            "links": [
                {"source": source, "target": target, "bytes": num_bytes}
                for (source, target), num_bytes in run.traffic.links.items()
            ],
        },
        "num_operations": run.execution.num_operations,
        "deadlock": None if run.deadlock is None else str(run.deadlock),
        "imbalances": run.imbalances,
    }
    return json.dumps(found)


def _operation_as_json(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": operation.kind.value, "what": operation.what}
    if operation.kind is OperationKind.COMPUTE:
        return found | {"work": operation.work}
    found |= {"axis": operation.axis, "bytes": operation.num_bytes}
    return found if operation.ends is None else found | {"from": operation.ends[0], "to": operation.ends[1]}
