"""Time and memory of training, computed before any of it runs. Pure: standard library only.

`held_bytes` is the memory of any model's weights and slots under `shard=`; `step_time` and `step_bytes` are the time
and memory of a transformer on GPUs, and `search` finds meshes. `strategies.plan` is the program.
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
    "Layout",
    "Lora",
    "ModelSizes",
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
    "search",
    "step_bytes",
    "step_time",
    "units_of",
]
