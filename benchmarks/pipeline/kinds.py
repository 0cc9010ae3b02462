"""The contenders by name. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One way to train.

    Attributes:
        row: row in the tables.
        schedule: schedule of its pipeline; None without a pipeline.
        processes: whether stages are processes, and not devices of one process.
        requires: the distribution to be installed besides ours.
        stages_per_device: number of stages of each device.
    """

    row: str
    schedule: str | None = None
    processes: bool = False
    requires: str = "keras"
    stages_per_device: int = 1


KINDS: Mapping[str, Kind] = {
    "plain": Kind("plain Keras, 1 device"),
    "plain_again": Kind("plain Keras, 1 device, a second process"),
    "unrolled": Kind("plain Keras, micro-batches in line in one graph"),
    "gpipe": Kind("PipelineModel, gpipe", "gpipe"),
    "1f1b": Kind("PipelineModel, 1f1b", "1f1b"),
    "zb_h1": Kind("PipelineModel, zb_h1", "zb_h1"),
    "zb_v": Kind("PipelineModel, zb_v", "zb_v", stages_per_device=2),
    "v_half": Kind("PipelineModel, v_half", "v_half", stages_per_device=2),
    "1f1b_processes": Kind("PipelineModel, 1f1b, a process for each device", "1f1b", True),
    "zb_h1_processes": Kind("PipelineModel, zb_h1, a process for each device", "zb_h1", True),
    "one_stage": Kind("PipelineModel of one stage", "1f1b"),
    "torch_gpipe": Kind("torch.distributed.pipelining, gloo, ScheduleGPipe", "gpipe", True, "torch"),
    "torch_1f1b": Kind("torch.distributed.pipelining, gloo, Schedule1F1B", "1f1b", True, "torch"),
    "torch_zb_v": Kind(
        "torch.distributed.pipelining, gloo, ScheduleZBVZeroBubble", "zb_v", True, "torch", stages_per_device=2
    ),
}
