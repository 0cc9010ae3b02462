"""Computes in advance, from sizes alone, what a strategy will need: the bytes on each device, as plain values."""

from strategies.planning.memory import (
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
    is_small,
    units_of,
)

__all__ = [
    "UNIT_BYTES",
    "HeldBytes",
    "ModelSizes",
    "Sharing",
    "Unit",
    "Weight",
    "bytes_per_parameter",
    "gathered_bytes",
    "has_room",
    "held_bytes",
    "is_small",
    "units_of",
]
