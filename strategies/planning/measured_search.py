"""Searches meshes, schedules, shards and recomputation for the fastest step of a measured model that fits. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.planning.measured import measured_seconds
from strategies.planning.measured_step import MeasuredLayout, MeasuredStep
from strategies.planning.search import SHARDS, TOO_LARGE, USABLE, divisors, in_order

# Micro-batches for each stage: more of them wait less, and compute fewer rows at a time.
_ROUNDS = (1, 2, 4)
_SCHEDULES = ("1f1b", "zb_h1")

#: Returns the bytes of the device with the most.
LayoutBytes = Callable[[MeasuredLayout], int]


@dataclass(frozen=True)
class MeasuredCandidate:
    """A layout with the time and memory of a step.

    Attributes:
        layout: the layout.
        parts: seconds of a step by part.
        num_bytes: on the device with the most; 0 before they are counted.
    """

    layout: MeasuredLayout
    parts: Mapping[str, float]
    num_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return sum(self.parts.values())

    @property
    def num_ways(self) -> int:
        """The number of ways in which the layout is not plain data parallelism."""
        layout = self.layout
        sizes = (layout.num_stages > 1, layout.num_tensor > 1, layout.num_expert > 1, layout.schedule != "1f1b")
        return sum((*sizes, layout.shard is not None, layout.recompute))


@dataclass(frozen=True)
class MeasuredSearch:
    """The result of a search.

    Attributes:
        best: the fastest layouts that fit, at most one of each mesh; simpler ones first among those within 1 %.
        refused: the numbers of layouts that were left out, by reason.
    """

    best: Sequence[MeasuredCandidate]
    refused: Mapping[str, int]


def measured_search(
    step: MeasuredStep,
    batch_size: int,
    num_devices: int,
    bytes_of: LayoutBytes,
    *,
    device_bytes: float = math.inf,
    num_best: int = 10,
    may_recompute: bool = True,
) -> MeasuredSearch:
    """Returns the fastest layouts that fit.

    Args:
        step: the measured model.
        batch_size: rows of the global batch.
        num_devices: all devices are used.
        bytes_of: see `LayoutBytes`; called for fast layouts only.
        device_bytes: the memory of a device; nine tenths of it may be used.
        num_best: the number of layouts to return.
        may_recompute: False if the model has no blocks that can be computed again; stages can.
    """
    refused: Counter[str] = Counter()
    by_mesh: dict[tuple[int, ...], list[MeasuredCandidate]] = {}
    for layout in _layouts(step, batch_size, num_devices, refused):
        if layout.recompute and layout.num_stages == 1 and not may_recompute:
            continue
        parts = measured_seconds(step, layout, batch_size)
        by_mesh.setdefault(tuple(layout.mesh.values()), []).append(MeasuredCandidate(layout, parts))
    found = []
    for candidates in by_mesh.values():
        for candidate in in_order(candidates):
            num_bytes = bytes_of(candidate.layout)
            if num_bytes <= USABLE * device_bytes:
                found.append(replace(candidate, num_bytes=num_bytes))
                break
            refused[TOO_LARGE] += 1
    return MeasuredSearch(tuple(in_order(found)[:num_best]), dict(refused))


def _layouts(step: MeasuredStep, batch_size: int, num_devices: int, refused: Counter[str]) -> Iterator[MeasuredLayout]:
    for p, t in itertools.product(divisors(num_devices), repeat=2):
        if num_devices % (p * t):
            continue
        replicas = num_devices // (p * t)
        if t > 1 and not any(layer.split_share for layer in step.layers):
            refused["splits layers, of which none can be split"] += 1
        elif p > len(step.layers):
            refused["has more stages than layers"] += 1
        elif batch_size % replicas:
            refused["has rows that do not divide among replicas"] += 1
        else:
            pipelines = _pipelines(p, batch_size // replicas)
            for e in _expert_sizes(step, replicas):
                d = replicas // e
                shards = SHARDS[: 1 if d == 1 else 3 if p == 1 else 2]
                for (schedule, m), shard, recompute in itertools.product(pipelines, shards, (False, True)):
                    yield MeasuredLayout(d, p, t, m, schedule, shard, recompute, e)


def _expert_sizes(step: MeasuredStep, replicas: int) -> list[int]:
    """Returns the sizes of the axis "expert", which divide the replicas and the experts of all mixtures."""
    numbers = [layer.num_experts for layer in step.layers if layer.num_experts]
    return divisors(math.gcd(replicas, *numbers)) if numbers else [1]


def _pipelines(num_stages: int, rows: int) -> list[tuple[str, int]]:
    """Returns schedules with numbers of micro-batches."""
    if num_stages == 1:
        return [("1f1b", 1)]
    numbers = [num_stages * each for each in _ROUNDS if num_stages * each <= rows]
    return list(itertools.product(_SCHEDULES, numbers))
