"""Time and memory of training, computed before any of it runs. Pure: standard library only.

`held_bytes` is the memory of any model's weights and slots under `shard=`; `step_time` and `step_bytes` are the time
and memory of a transformer on GPUs, `resnet` those of a ResNet, and `search` finds meshes. `measured` is the time of
any model whose layers were measured, and `measured_search` finds its meshes. `strategies.plan` is the program.
"""

from strategies.planning.hardware import GPUS, NETWORKS, Gpu, gpu_of
from strategies.planning.held_bytes import (
    UNIT_BYTES,
    HeldBytes,
    ModelSizes,
    Sharing,
    Unit,
    Weight,
    bytes_per_parameter,
    gathered_bytes,
    has_room,
    held_bytes,
    is_shardable,
    is_small,
    units_of,
)
from strategies.planning.layout import Layout
from strategies.planning.measured import measured_seconds, stage_starts
from strategies.planning.measured_search import MeasuredCandidate, MeasuredSearch, measured_search
from strategies.planning.measured_step import LayerShare, Linear, Link, MeasuredLayout, MeasuredStep
from strategies.planning.resnet import ResNet, resnet_search
from strategies.planning.search import Candidate, Search, search
from strategies.planning.step_bytes import StepBytes, step_bytes
from strategies.planning.step_time import StepTime, step_time
from strategies.planning.transformer import Experts, Lora, Transformer

__all__ = [
    "GPUS",
    "NETWORKS",
    "UNIT_BYTES",
    "Candidate",
    "Experts",
    "Gpu",
    "HeldBytes",
    "LayerShare",
    "Layout",
    "Linear",
    "Link",
    "Lora",
    "MeasuredCandidate",
    "MeasuredLayout",
    "MeasuredSearch",
    "MeasuredStep",
    "ModelSizes",
    "ResNet",
    "Search",
    "Sharing",
    "StepBytes",
    "StepTime",
    "Transformer",
    "Unit",
    "Weight",
    "bytes_per_parameter",
    "gathered_bytes",
    "gpu_of",
    "has_room",
    "held_bytes",
    "is_shardable",
    "is_small",
    "measured_search",
    "measured_seconds",
    "resnet_search",
    "search",
    "stage_starts",
    "step_bytes",
    "step_time",
    "units_of",
]
