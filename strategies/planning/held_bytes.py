"""The bytes that a device holds in a training step, from the sizes of a model's variables. Pure: standard library only.

| shard | weights | gradients | slots | gathered |
|---|---|---|---|---|
| None | P | P | S | |
| "optimizer", "gradients" | P | P | S / s | |
| "weights" | P / s | P / s | S / s | two units, and small ones |
| "optimizer", mesh axis "expert" of size s | P - E + E / s | P - E + E / s | S / s | |
| "weights", mesh axis "expert" of size s | P / s | P / s | S / s | two units, and small ones, of P - E |

P is the bytes of the trained weights, E those of experts among them, S the bytes of their slots, s the number of
replicas that share. Weights that are not trained, and optimizer variables that exist once, such as its step, are whole
on each device.

Source: stages 1 to 3 of ZeRO (Rajbhandari et al., arXiv:1910.02054), section 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: The bytes that are gathered at a time if no bucket size is set.
UNIT_BYTES = 4 * 2**20
#: The fraction of a unit up to which a weight is small. Small weights have separate units, because a kernel that is
#: gathered without its bias need not be copied into a message and out of it.
_SMALL = 1 / 64


@dataclass(frozen=True)
class Sharing:
    """The replicas of a job, and the parts of the model that they shard.

    Attributes:
        num_replicas: the number of replicas of the job.
        shard: "optimizer", "gradients", "weights", or None if each replica holds all.
        size: the number of replicas that share, a divisor of `num_replicas`; without meaning if `shard` is None.
        divides_experts: True if these replicas are those along the mesh axis "expert".
    """

    num_replicas: int = 1
    shard: str | None = None
    size: int = 1
    divides_experts: bool = False

    def __post_init__(self) -> None:
        if self.shard not in (None, "optimizer", "gradients", "weights"):
            raise ValueError(f"shard must be 'optimizer', 'gradients', 'weights' or None. Received: {self.shard!r}.")
        if self.divides_experts and self.shard is None:
            raise ValueError("Along the axis 'expert' optimizers are sharded. Received: shard=None.")
        if self.size < 1 or self.num_replicas % self.size:
            raise ValueError(
                "The number of replicas that share divides the number of all. "
                f"Received: size={self.size}, num_replicas={self.num_replicas}."
            )

    @property
    def num_slot_shards(self) -> int:
        """The number of devices by which the bytes of slots are divided."""
        return 1 if self.shard is None else self.size

    @property
    def num_weight_shards(self) -> int:
        """The number of devices by which the bytes of weights and gradients are divided."""
        return self.size if self.shard == "weights" else 1


@dataclass(frozen=True)
class Weight:
    """One weight.

    Attributes:
        num_bytes: the bytes of the whole weight.
        dtype: the name of its dtype.
        is_trained: whether it has a gradient.
        may_shard: True if ``shard="weights"`` shards it, see `is_shardable`.
        is_expert: True if the axis "expert" divides it. It is not gathered: its inputs travel.
    """

    num_bytes: int
    dtype: str = "float32"
    is_trained: bool = True
    may_shard: bool = True
    is_expert: bool = False


def is_shardable(dtype: str, rank: int, *, is_trainable: bool) -> bool:
    """Returns True if ``shard="weights"`` shards a variable that is created with these properties.

    Args:
        dtype: the name of its dtype.
        rank: the number of its dims.
        is_trainable: the argument `trainable` of its creation.
    """
    if is_trainable:
        return dtype.startswith(("float", "bfloat"))
    # Keras makes the kernels and tables of quantized layers so. Other state is small, and set in steps.
    return dtype == "int8" and rank > 1


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model and of its optimizer.

    Attributes:
        weights: in the order in which they were created.
        slot_bytes: the bytes of the optimizer variables that can be sharded: slots, averages and the like.
        replicated_bytes: the bytes of the optimizer variables that each device has whole, such as the step's number.
        whole_slots: whether each weight's slots have one owner, because the optimizer looks at whole weights.
    """

    weights: tuple[Weight, ...]
    slot_bytes: int = 0
    replicated_bytes: int = 0
    whole_slots: bool = False

    @property
    def trained_bytes(self) -> int:
        """The bytes of the weights that have gradients."""
        return sum(each.num_bytes for each in self.weights if each.is_trained)


@dataclass(frozen=True)
class HeldBytes:
    """The bytes on one device by kind.

    Attributes:
        weights: trained weights or their shards, and other weights.
        gradients: the gradients when the update begins.
        optimizer: slots, averages, accumulated gradients.
        gathered: whole weights that exist during a part of the step, beside the shards.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0

    @property
    def together(self) -> int:
        """The bytes of all kinds together."""
        return self.weights + self.gradients + self.optimizer + self.gathered


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered together.

    Attributes:
        num_bytes: the bytes of all its weights.
        is_small: whether its weights are small: once gathered, they stay until the step's end.
    """

    num_bytes: int
    is_small: bool = False


def held_bytes(sizes: ModelSizes, sharing: Sharing, *, all_stay: bool = False) -> HeldBytes:
    """Returns the bytes on the device that holds most.

    Args:
        sizes: the sizes of the model, or of the part of it on a device of each replica.
        sharing: the sharding among its replicas.
        all_stay: whether gathered weights stay until the step's end, as in a pipeline.

    Example:

        sizes = ModelSizes((Weight(4000),), slot_bytes=8000)
        assert held_bytes(sizes, Sharing(4, "optimizer", 4)) == HeldBytes(4000, 4000, 2000)
    """
    experts = [each for each in sizes.weights if each.is_expert] if sharing.divides_experts else []
    others = [each for each in sizes.weights if not each.is_expert] if experts else sizes.weights
    gathered = [each for each in others if each.may_shard] if sharing.num_weight_shards > 1 else []
    whole = [each for each in others if not each.may_shard] if gathered else others
    cut = [*experts, *gathered]
    gradients = math.ceil(sum(each.num_bytes for each in cut if each.is_trained) / sharing.size)
    slots = sizes.slot_bytes / sharing.num_slot_shards
    if sizes.whole_slots and sizes.trained_bytes:
        trained = [each.num_bytes for each in sizes.weights if each.is_trained]
        slots = sizes.slot_bytes * _largest_load(trained, sharing.num_slot_shards) / sizes.trained_bytes
    return HeldBytes(
        math.ceil(sum(each.num_bytes for each in cut) / sharing.size) + sum(each.num_bytes for each in whole),
        gradients + sum(each.num_bytes for each in whole if each.is_trained),
        math.ceil(slots) + sizes.replicated_bytes,
        gathered_bytes(units_of(gathered), all_stay=all_stay),
    )


def _largest_load(num_bytes: Sequence[int], num_owners: int) -> int:
    """Returns the bytes of the owner that has most if whole weights are assigned, largest first, to the emptiest."""
    loads = [0] * num_owners
    for size in sorted(num_bytes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


# ---- units


def is_small(num_bytes: int, unit_bytes: int) -> bool:
    """Returns True for a weight that is gathered together with other small weights and stays until the step's end."""
    return num_bytes <= _SMALL * unit_bytes


def has_room(used: int, num_bytes: int, unit_bytes: int) -> bool:
    """Returns True if a unit of `used` bytes has room for a weight of `num_bytes`."""
    return used + num_bytes <= unit_bytes


def units_of(weights: Sequence[Weight], unit_bytes: int = UNIT_BYTES) -> tuple[Unit, ...]:
    """Returns the units of weights on one device, in the order in which they were begun."""
    units: list[Unit] = []
    last: dict[tuple[str, bool], int] = {}
    for each in weights:
        key = (each.dtype, is_small(each.num_bytes, unit_bytes))
        at = last.get(key)
        if at is None or not has_room(units[at].num_bytes, each.num_bytes, unit_bytes):
            at = last[key] = len(units)
            units.append(Unit(0, key[1]))
        units[at] = Unit(units[at].num_bytes + each.num_bytes, key[1])
    return tuple(units)


def gathered_bytes(units: Sequence[Unit], *, all_stay: bool = False) -> int:
    """Returns the largest number of bytes of gathered weights on a device at once.

    Args:
        units: the units of the device, in the order of their use. Two consecutive large ones exist at a time: one is
            used for computing, the next is being gathered.
        all_stay: whether all units, once gathered, stay until the step's end, as in a pipeline.

    Example:

        assert gathered_bytes([Unit(5), Unit(1, is_small=True), Unit(7), Unit(2)]) == 13
    """
    large = [each.num_bytes for each in units if all_stay or not each.is_small]
    small = sum(each.num_bytes for each in units if each.is_small and not all_stay)
    if all_stay or len(large) < 2:
        return sum(large) + small
    return max(first + second for first, second in itertools.pairwise(large)) + small


# ---- by parameter


def bytes_per_parameter(num_slots: int, sharing: Sharing) -> tuple[str, float]:
    """Returns the formula of the bytes per float32 parameter, and its value, without gathered units.

    Args:
        num_slots: the number of optimizer variables of a weight's shape, per weight.
        sharing: the sharding among the replicas.

    Example:

        assert bytes_per_parameter(2, Sharing(4, "optimizer", 4)) == ("4 + 4 + 8 / 4 = 10", 10.0)
    """
    slots = 4 * num_slots
    value = 8 / sharing.num_weight_shards + slots / sharing.num_slot_shards
    if sharing.num_weight_shards > 1:
        text = f"(4 + 4 + {slots}) / {sharing.num_weight_shards}"
    elif sharing.num_slot_shards > 1:
        text = f"4 + 4 + {slots} / {sharing.num_slot_shards}"
    else:
        text = f"4 + 4 + {slots}"
    return f"{text} = {value:.4g}", value
