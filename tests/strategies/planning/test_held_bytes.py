"""Bytes of devices, computed from sizes: literal tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strategies.planning import (
    UNIT_BYTES,
    HeldBytes,
    ModelSizes,
    Sharing,
    Unit,
    Weight,
    bytes_per_parameter,
    gathered_bytes,
    held_bytes,
    units_of,
)

MIB = 2**20

#: Three kernels of 3 MiB and their biases, statistics that are not trained, Adam's slots and its two numbers.
SIZES = ModelSizes(
    (
        *(each for _ in range(3) for each in (Weight(3 * MIB), Weight(4096))),
        Weight(8192, is_trained=False, may_shard=False),
    ),
    slot_bytes=2 * 3 * (3 * MIB + 4096),
    replicated_bytes=12,
)
P = 3 * (3 * MIB + 4096)
TABLE = [
    (Sharing(), HeldBytes(P + 8192, P, 2 * P + 12)),
    (Sharing(8), HeldBytes(P + 8192, P, 2 * P + 12)),
    (Sharing(8, "optimizer", 8), HeldBytes(P + 8192, P, P // 4 + 12)),
    (Sharing(8, "gradients", 8), HeldBytes(P + 8192, P, P // 4 + 12)),
    (Sharing(8, "optimizer", 4), HeldBytes(P + 8192, P, P // 2 + 12)),
    (Sharing(8, "weights", 8), HeldBytes(P // 8 + 8192, P // 8, P // 4 + 12, 6 * MIB + 3 * 4096)),
    (Sharing(8, "weights", 2), HeldBytes(P // 2 + 8192, P // 2, P + 12, 6 * MIB + 3 * 4096)),
    (Sharing(1, "weights", 1), HeldBytes(P + 8192, P, 2 * P + 12)),
]


@pytest.mark.parametrize(("sharing", "expected"), TABLE, ids=[str(sharing) for sharing, _ in TABLE])
def test_what_a_device_holds(sharing: Sharing, expected: HeldBytes) -> None:
    assert held_bytes(SIZES, sharing) == expected
    assert expected.together == expected.weights + expected.gradients + expected.optimizer + expected.gathered


def test_frozen_weights_are_cut_and_have_no_gradients() -> None:
    sizes = ModelSizes((Weight(8000, is_trained=False), Weight(400)), slot_bytes=800)
    assert held_bytes(sizes, Sharing(4, "weights", 4)) == HeldBytes(2100, 100, 200, 8400)
    assert held_bytes(sizes, Sharing(4, "optimizer", 4)) == HeldBytes(8400, 400, 200)


def test_experts_are_divided_and_not_gathered() -> None:
    sizes = ModelSizes((Weight(400), Weight(8000, is_expert=True)), slot_bytes=16800)
    assert held_bytes(sizes, Sharing(4, "optimizer", 2, divides_experts=True)) == HeldBytes(4400, 4400, 8400)
    assert held_bytes(sizes, Sharing(4, "weights", 2, divides_experts=True)) == HeldBytes(4200, 4200, 8400, 400)
    # Without the axis they are weights like others.
    assert held_bytes(sizes, Sharing(4)) == HeldBytes(8400, 8400, 16800)
    with pytest.raises(ValueError, match=r"Along the axis 'expert'"):
        Sharing(4, divides_experts=True)


def test_slots_of_whole_weights_are_assigned_largest_first() -> None:
    sizes = ModelSizes(tuple(map(Weight, (500, 300, 200, 200))), slot_bytes=2400, whole_slots=True)
    assert held_bytes(sizes, Sharing(2, "optimizer", 2)).optimizer == 1400
    assert held_bytes(sizes, Sharing(2)).optimizer == 2400


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((), ()),
        ((Weight(65536), Weight(65537)), (Unit(65536, is_small=True), Unit(65537))),
        ((Weight(3 * MIB), Weight(MIB), Weight(MIB)), (Unit(4 * MIB), Unit(MIB))),
        ((Weight(9 * MIB), Weight(MIB)), (Unit(9 * MIB), Unit(MIB))),
        ((Weight(MIB), Weight(MIB, "float16"), Weight(MIB)), (Unit(2 * MIB), Unit(MIB))),
    ],
    ids=["none", "small", "one behind the other", "larger than a unit", "by dtype"],
)
def test_units(weights: tuple[Weight, ...], expected: tuple[Unit, ...]) -> None:
    assert units_of(weights, UNIT_BYTES) == expected


def test_gathered() -> None:
    small = Unit(1, is_small=True)
    assert gathered_bytes([]) == 0
    assert gathered_bytes([small, small]) == 2
    assert gathered_bytes([Unit(5), small]) == 6
    assert gathered_bytes([Unit(9), Unit(2), small, Unit(5), Unit(7)]) == 13
    assert gathered_bytes([Unit(9), Unit(2), small], all_stay=True) == 12


@pytest.mark.parametrize(
    ("num_slots", "sharing", "expected"),
    [
        (2, Sharing(), ("4 + 4 + 8 = 16", 16)),
        (1, Sharing(8), ("4 + 4 + 4 = 12", 12)),
        (0, Sharing(8), ("4 + 4 + 0 = 8", 8)),
        (2, Sharing(8, "optimizer", 8), ("4 + 4 + 8 / 8 = 9", 9)),
        (2, Sharing(8, "gradients", 4), ("4 + 4 + 8 / 4 = 10", 10)),
        (2, Sharing(8, "weights", 8), ("(4 + 4 + 8) / 8 = 2", 2)),
        (3, Sharing(8, "weights", 8), ("(4 + 4 + 12) / 8 = 2.5", 2.5)),
    ],
)
def test_bytes_of_a_parameter(num_slots: int, sharing: Sharing, expected: tuple[str, float]) -> None:
    assert bytes_per_parameter(num_slots, sharing) == expected


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"or None\. Received: 'all'\.$"):
        Sharing(4, "all", 4)
    with pytest.raises(ValueError, match=r"Received: size=3, num_replicas=4\.$"):
        Sharing(4, "optimizer", 3)


def test_nothing_else_is_needed() -> None:
    # The process imports the module by its path: the package above it starts TensorFlow when a strategy is used.
    code = "import sys, strategies.planning; sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
