"""The flags of ``python -m strategies.plan --dry-run``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from strategies.command_line import Parser
from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.report import as_json, as_text
from strategies.planning.dry_run.run import DryRun
from strategies.planning.hardware import Gpu
from strategies.planning.layout import Layout
from strategies.planning.resnet import ResNet
from strategies.planning.search import search
from strategies.planning.transformer import Transformer
from strategies.schedules import SCHEDULES
from strategies.topology.axes import resolve_sizes
from strategies.topology.mesh import DeviceMesh

_SHARDED = ("optimizer", "gradients", "weights")


def add_flags(parser: Parser) -> None:
    """Adds the flags of a dry run."""
    add = parser.add_argument_group(
        "dry run", "Placement, groups, bytes and order of all ranks, on no device; exit code 1 for a deadlock."
    ).add_argument
    add("--dry-run", action="store_true", help="run the best mesh dry, or the one of --mesh")
    add("--mesh", help="a mesh such as data=8,pipe=8,tensor=8; one size may be -1")
    parser.add_rare(add, "--micro-batch", type=int, metavar="N", help="rows of a micro-batch")
    parser.add_rare(
        add,
        "--schedule",
        choices=SCHEDULES,
        metavar="NAME",
        help=f"of the pipeline: {', '.join(SCHEDULES)}; default: that of the best layout",
    )
    parser.add_rare(add, "--stages", metavar="N,N,...", help="blocks of each stage, such as 3,5,4,4; default: equal")
    parser.add_rare(
        add,
        "--shard",
        choices=_SHARDED,
        metavar="STATE",
        help=f"the state that replicas shard: {', '.join(_SHARDED)}",
    )
    parser.add_rare(add, "--ranks", action="store_true", help="also print a line for each rank")


def run(flags: argparse.Namespace, model: Transformer | ResNet, gpu: Gpu) -> tuple[str, bool]:
    """Runs dry what the flags describe; returns the report, and True if there is no deadlock.

    Args:
        flags: as parsed, with those of `strategies.plan`.
        model: the model.
        gpu: the devices.

    Raises:
        ValueError: the flags do not fit together.
    """
    if isinstance(model, ResNet):
        raise ValueError("A dry run is of a transformer: give --layers, --hidden and --heads. Received: --resnet.")
    layout = _layout(flags, model, gpu)
    stages = None if flags.stages is None else _numbers(flags.stages)
    made = DryRun.create(Job.create(model, layout, flags.batch, schedule=flags.schedule, stages=stages))
    return as_json(made) if flags.json else as_text(made, lists_ranks=flags.ranks), made.deadlock is None


def _layout(flags: argparse.Namespace, model: Transformer, gpu: Gpu) -> Layout:
    """Returns the fastest layout on the mesh, or on any mesh; plain 1F1B on a mesh on which none fits."""
    found = search(model, flags.batch, flags.gpus, gpu, host_size=flags.host_size, num_best=flags.gpus**2).best
    if flags.mesh is None:
        if not found:
            raise ValueError("No mesh fits these GPUs, or none is possible: name one with --mesh, or use more GPUs.")
        layout = found[0].layout
    else:
        sizes = resolve_sizes(DeviceMesh.axes_of(flags.mesh), flags.gpus)
        layout = next((each.layout for each in found if _is_on(each.layout, sizes)), _plain(flags, model, sizes))
    if flags.stages is not None and flags.schedule is None:
        chunks = max(1, len(_numbers(flags.stages)) // layout.num_stages)
        layout = replace(layout, num_chunks=chunks, schedule="1f1b")
    if flags.micro_batch is not None:
        layout = replace(layout, microbatch_size=flags.micro_batch)
    return layout if flags.shard is None else replace(layout, shard=flags.shard)


def _is_on(layout: Layout, sizes: Mapping[str, int]) -> bool:
    return (
        all(sizes.get(axis, 1) == size for axis, size in layout.mesh.items())
        and sizes.get("expert", 1) == layout.num_expert
    )


def _plain(flags: argparse.Namespace, model: Transformer, sizes: Mapping[str, int]) -> Layout:
    tensor = sizes.get("tensor", 1)
    if sizes.get("expert", 1) > 1 or model.num_heads % tensor:
        raise ValueError(
            f"A dry run has the axes data, pipe and tensor, and 'tensor' divides the {model.num_heads} heads. "
            f"Received: mesh={dict(sizes)}."
        )
    return Layout(
        sizes.get("data", 1), sizes.get("pipe", 1), tensor, sequence_parallel=tensor > 1, host_size=flags.host_size
    )


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"The stages are numbers of blocks, such as 3,5,4,4. Received: --stages={text}.") from None
