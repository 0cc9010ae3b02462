"""Plans the training of a transformer on GPUs that one need not have: ``python -m strategies.plan``.

    python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8 --gpu=H100
    python -m strategies.plan --layers=80 --hidden=8192 --heads=64 --batch=1024 --gpus=64 --gpu=A100 --json
    python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8 --scale=8,64,512,4096

It prints the fastest meshes that fit, with the time and memory of a step, from formulas: see `strategies.planning`. On
GPUs other than the A100 they were not compared with measurements.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from strategies.planning import GPUS, NETWORKS, Candidate, Gpu, Search, StepTime, Transformer, gpu_of, search
from strategies.text_table import text_table

_GB = 1e9
_HEADING = (
    "data",
    "pipe",
    "tensor",
    "micro-batch",
    "chunks",
    "recompute",
    "shard",
    "seconds",
    "tokens/s",
    "GB",
    "lost",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a plan; returns the exit code: 1 if no layout fits.

    Args:
        argv: the command line without the program's name; that of this process if None.

    Raises:
        SystemExit: with 2 for invalid flags.
    """
    parser = argparse.ArgumentParser(
        prog="python -m strategies.plan",
        description="Finds the mesh on which a transformer trains fastest, and whether it fits.",
        epilog="example: python -m strategies.plan --layers=32 --hidden=4096 --heads=32 --batch=512 --gpus=8",
    )
    parser.add_argument("--layers", type=int, required=True, help="blocks of the model")
    parser.add_argument("--hidden", type=int, required=True, help="features of a token")
    parser.add_argument("--heads", type=int, required=True, help="heads of attention")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--vocabulary", type=int, default=51200, help="tokens in all")
    parser.add_argument("--batch", type=int, required=True, help="rows of the global batch")
    parser.add_argument("--gpus", type=int, required=True, help="the number of GPUs")
    parser.add_argument("--gpu", choices=GPUS, default="A100", help="their kind")
    parser.add_argument("--network", choices=NETWORKS, help="between hosts; by default the usual one of the GPU")
    parser.add_argument("--host-size", type=int, default=8, help="GPUs of a host")
    parser.add_argument("--best", type=int, default=10, help="the number of meshes to print")
    parser.add_argument(
        "--scale", type=_numbers, help="print the best mesh of each number of GPUs, at rows for each GPU"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags = parser.parse_args(argv)
    try:
        model = Transformer(flags.layers, flags.hidden, flags.heads, flags.sequence, flags.vocabulary)
        gpu = gpu_of(flags.gpu, flags.network)
        if flags.scale:
            print(_scaling(model, flags.batch, flags.gpus, flags.scale, gpu, flags.host_size))
            return 0
        found = search(model, flags.batch, flags.gpus, gpu, host_size=flags.host_size, num_best=flags.best)
    except ValueError as error:
        parser.error(str(error))
    print(_as_json(model, found) if flags.json else _as_text(model, found, gpu, flags.batch))
    return 0 if found.best else 1


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _scaling(
    model: Transformer, batch_size: int, num_devices: int, numbers: Sequence[int], gpu: Gpu, host_size: int
) -> str:
    """Returns a table of the best mesh of each number of devices, and of the parts of its time.

    Args:
        model: the model.
        batch_size: rows of the global batch on `num_devices`; with more devices there are more rows.
        num_devices: the devices of the batch.
        numbers: the numbers of devices to compare; efficiency is relative to the first on which the model fits.
        gpu: the devices.
        host_size: devices of a host.
    """
    rows: list[tuple[str, ...]] = []
    first, shown = 0.0, tuple(part.name for part in dataclasses.fields(StepTime) if part.name != "layers")
    for number in numbers:
        num_rows = batch_size * number // num_devices
        found = search(model, num_rows, number, gpu, host_size=host_size, num_best=1)
        if not found.best:
            rows.append((str(number), str(num_rows), "does not fit", *[""] * (2 + len(shown))))
            continue
        [best] = found.best
        parts, layout = best.time.parts(), best.layout
        per_device = num_rows * model.sequence_length / best.time.total / number
        first = first or per_device
        mesh = f"{layout.num_data} x {layout.num_stages} x {layout.num_tensor}"
        shares = [f"{parts[name] / best.time.total:.1%}" for name in shown]
        rows.append((str(number), str(num_rows), mesh, f"{per_device:,.0f}", f"{per_device / first:.0%}", *shares))
    heading = ("GPUs", "rows", "data x pipe x tensor", "tokens/s of a GPU", "efficiency", *shown)
    return "\n".join(text_table([heading, *rows], left=()))


def _as_text(model: Transformer, found: Search, gpu: Gpu, batch_size: int) -> str:
    """Returns a table of the best layouts, and sentences about the first and about those that were left out."""
    lines = [f"{model.num_parameters / 1e9:.1f} billion parameters, {gpu.name}:"]
    rows = [_row(each, model.sequence_length * batch_size) for each in found.best]
    lines += text_table([_HEADING, *rows], left=(5, 6)) if rows else []
    lines.append(_conclusion(found))
    lines += [
        f"Left out: {number} layouts, each of which {reason}." for reason, number in sorted(found.refused.items())
    ]
    return "\n".join(lines)


def _row(candidate: Candidate, num_tokens: int) -> tuple[str, ...]:
    layout, time = candidate.layout, candidate.time
    lost = 1 - (time.layers + time.logits) / time.total
    return (
        *(str(each) for each in (layout.num_data, layout.num_stages, layout.num_tensor, layout.microbatch_size)),
        str(layout.num_chunks),
        layout.recompute or "-",
        layout.shard or "-",
        f"{time.total:.2f}",
        f"{num_tokens / time.total:,.0f}",
        f"{candidate.memory.total / _GB:.1f}",
        f"{lost:.0%}",
    )


def _conclusion(found: Search) -> str:
    usable = f"{found.usable_bytes / _GB:.1f} GB, which a plan may use of each GPU"
    if not found.best:
        return f"No layout fits into {usable}. Use more GPUs, or fewer rows."
    near = found.best[0].memory.total / found.usable_bytes
    if not found.splits:
        return f"Do not split, it fits: data parallelism takes {near:.0%} of the {usable}."
    return f"The first is the fastest, or within 1 % of it and simpler; it takes {near:.0%} of the {usable}."


def _as_json(model: Transformer, found: Search) -> str:
    best = [
        {
            "mesh": each.layout.mesh,
            "layout": dataclasses.asdict(each.layout),
            "seconds": {**each.time.parts(), "total": each.time.total},
            "bytes": {**dataclasses.asdict(each.memory), "total": each.memory.total},
        }
        for each in found.best
    ]
    plan = {
        "num_parameters": model.num_parameters,
        "usable_bytes": found.usable_bytes,
        "best": best,
        "left_out": dict(found.refused),
    }
    return json.dumps(plan, indent=1)


if __name__ == "__main__":
    sys.exit(main())
