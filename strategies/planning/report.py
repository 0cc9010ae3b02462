"""The result of a search as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from strategies.planning.layout import Layout
from strategies.planning.search import TOO_LARGE, Candidate, Search
from strategies.text_table import text_table

_GB = 1e9
_HEADING = ("micro-batch", "schedule", "recompute", "shard", "seconds", "GB", "lost")


def as_text(found: Search, title: str, num_units: int, unit: str) -> str:
    """Returns a table of the best layouts, and sentences about the first and about those that were left out.

    Args:
        found: the result of a search.
        title: the first line.
        num_units: tokens or images of a step.
        unit: their name.
    """
    lines = [title]
    if found.best:
        axes = [axis for axis in _axes(found.best[0]) if any(_axes(each)[axis] > 1 for each in found.best)] or ["data"]
        heading = (*axes, *_HEADING[:5], f"{unit}/s", *_HEADING[5:])
        rows = [
            (*(str(_axes(each)[axis]) for axis in axes), *_row(each, num_units / each.time.total))
            for each in found.best
        ]
        first = len(axes) + 1
        lines += text_table([heading, *rows], left=range(first, first + 3))
    lines.append(_conclusion(found))
    lines += [f"Left out: {number} layouts, each of which {why}." for why, number in sorted(found.refused.items())]
    return "\n".join(lines)


def _axes(candidate: Candidate) -> dict[str, int]:
    layout = candidate.layout
    sizes = {"data": layout.num_data, "expert": layout.num_expert}
    return {**sizes, "pipe": layout.num_stages, "tensor": layout.num_tensor}


def _row(candidate: Candidate, units_per_second: float) -> tuple[str, ...]:
    layout, time = candidate.layout, candidate.time
    lost = 1 - (time.layers + time.logits) / time.total
    return (
        str(layout.microbatch_size),
        schedule_of(candidate),
        f"{layout.recompute}, offload" if layout.offload else layout.recompute or "-",
        layout.shard or "-",
        f"{time.total:.2f}",
        f"{units_per_second:,.0f}",
        f"{candidate.memory.total / _GB:.1f}",
        f"{lost:.0%}",
    )


def schedule_of(candidate: Candidate) -> str:
    """Returns the schedule of a layout, with its chunks; "-" without a pipeline."""
    layout = candidate.layout
    if layout.num_stages == 1:
        return "-"
    return f"{layout.schedule} x {layout.num_chunks}" if layout.num_chunks > 1 else layout.schedule


def _conclusion(found: Search) -> str:
    usable = f"{found.usable_bytes / _GB:.1f} GB, which a plan may use of each GPU"
    if not found.best:
        if TOO_LARGE not in found.refused:
            return "No layout is possible. Choose rows, heads and layers that divide among the GPUs."
        return f"No layout fits into {usable}. Use more GPUs, or fewer rows."
    near = found.best[0].memory.total / found.usable_bytes
    if not found.splits:
        return f"Do not split, it fits: data parallelism takes {near:.0%} of the {usable}."
    return f"The first is the fastest, or within 1 % of it and simpler; it takes {near:.0%} of the {usable}."


def _arguments(layout: Layout, num_microbatches: int) -> dict[str, Any]:
    """Returns the arguments of `PipelineModel`, or those of the optimizer without a pipeline."""
    pipeline = layout.pipeline
    if pipeline is not None:
        return {"pipeline": {"num_microbatches": num_microbatches, **pipeline}}
    return {"pipeline": None, "gradient_accumulation_steps": num_microbatches if num_microbatches > 1 else None}


def as_json(found: Search, num_parameters: int, batch_size: int) -> str:
    """Returns all parts of the time and the memory of the best layouts, and what was left out.

    Args:
        found: the result of a search.
        num_parameters: of the model.
        batch_size: rows of the global batch.
    """
    best = [
        {
            "mesh": each.layout.mesh,
            **_arguments(each.layout, each.layout.num_microbatches(batch_size)),
            "layout": dataclasses.asdict(each.layout),
            "seconds": {**each.time.parts(), "total": each.time.total},
            "bytes": {**dataclasses.asdict(each.memory), "total": each.memory.total},
        }
        for each in found.best
    ]
    plan = {
        "num_parameters": num_parameters,
        "num_gpus": found.best[0].layout.num_devices if found.best else None,
        "bytes_of_gpu": found.best[0].memory.total if found.best else None,
        "usable_bytes": found.usable_bytes,
        "best": best,
        "left_out": dict(found.refused),
    }
    return json.dumps(plan, indent=1)
