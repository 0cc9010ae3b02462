"""Searches meshes, micro-batches, recomputation and shards for the fastest step that fits the devices."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from strategies.planning.hardware import Gpu
from strategies.planning.layout import Layout, ScheduleName, Shard
from strategies.planning.step_bytes import StepBytes, step_bytes
from strategies.planning.step_time import StepTime, step_time
from strategies.planning.transformer import Recompute, Transformer

#: The fraction of the memory that a plan may use: the rest is for libraries, collectives' buffers and fragmentation.
USABLE = 0.9
#: The reason for which layouts do not fit.
TOO_LARGE = "needs more memory than a device has"
#: Differences of time that are smaller than this fraction do not decide.
RESOLUTION = 0.01
# "full" is `keras_ext.rematerialize`, with or without offloading; "selective" is not in this package.
_RECOMPUTE: tuple[tuple[Recompute, bool], ...] = ((None, False), ("full", False), ("full", True))
#: The state that replicas may shard, from none to all of it.
SHARDS: tuple[Shard, ...] = (None, "optimizer", "weights")
_ZERO_BUBBLE: tuple[ScheduleName, ...] = ("zb_h1", "zb_v", "v_half")
# The tables of zero-bubble schedules of more devices take seconds to simulate.
_MOST_SIMULATED = 8


@dataclass(frozen=True)
class Candidate:
    """A layout with its time and memory.

    Attributes:
        layout: the layout.
        time: of a step.
        memory: on the device with the most.
    """

    layout: Layout
    time: StepTime
    memory: StepBytes

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.time.total

    @property
    def num_ways(self) -> int:
        """The number of ways in which the layout is not plain data parallelism."""
        layout = self.layout
        ways = (layout.num_stages > 1, layout.num_tensor > 1, layout.num_expert > 1, layout.shard is not None)
        more = (layout.recompute is not None, layout.offload, layout.schedule != "1f1b")
        return sum((*ways, *more))


@dataclass(frozen=True)
class Search:
    """The result of a search.

    Attributes:
        best: the fastest layouts that fit, fastest first, but simpler ones first among those within 1 % of the fastest.
        refused: the numbers of layouts that were left out, by reason.
        usable_bytes: the memory of a device that a plan may use.
    """

    best: Sequence[Candidate]
    refused: Mapping[str, int]
    usable_bytes: float

    @property
    def splits(self) -> bool:
        """True if the first layout divides the model: into stages, shards of layers, or shards of its state."""
        if not self.best:
            return False
        layout = self.best[0].layout
        return layout.num_replicas < layout.num_devices or layout.num_expert > 1 or layout.shard is not None


def search(
    model: Transformer, batch_size: int, num_devices: int, gpu: Gpu, *, host_size: int = 8, num_best: int = 10
) -> Search:
    """Returns the fastest layouts that fit.

    Args:
        model: the model.
        batch_size: rows of the global batch.
        num_devices: all devices are used.
        gpu: the devices.
        host_size: devices of a host. Layers are split inside a host only.
        num_best: the number of layouts to return; of each mesh only the fastest.

    Raises:
        ValueError: an argument is out of range.

    Example:

        found = search(Transformer(32, 4096, 32), batch_size=512, num_devices=8, gpu=gpu_of("A100"))
        assert found.best[0].layout.num_devices == 8
    """
    if min(batch_size, num_devices, host_size, num_best) < 1:
        raise ValueError(
            "Numbers of rows, devices and layouts are at least 1. Received: "
            f"batch_size={batch_size}, num_devices={num_devices}, host_size={host_size}, num_best={num_best}."
        )
    refused: Counter[str] = Counter()
    usable = USABLE * gpu.memory_bytes
    fastest: dict[tuple[int, ...], Candidate] = {}
    for layout in _layouts(model, batch_size, num_devices, host_size, refused):
        memory = step_bytes(model, layout, layout.num_microbatches(batch_size))
        if memory.total > usable:
            refused[TOO_LARGE] += 1
            continue
        candidate = Candidate(layout, step_time(model, layout, batch_size, gpu), memory)
        key = tuple(layout.mesh.values())
        if key not in fastest or _is_better(candidate, fastest[key]):
            fastest[key] = candidate
    best = in_order(fastest.values())
    return Search(tuple(best[:num_best]), dict(refused), usable)


class Ranked(Protocol):
    """A layout with what decides its place among others."""

    @property
    def seconds(self) -> float:
        """The seconds of a step."""

    @property
    def num_ways(self) -> int:
        """The number of ways in which the layout is not plain data parallelism."""


_Ranked = TypeVar("_Ranked", bound=Ranked)


def in_order(candidates: Iterable[_Ranked]) -> list[_Ranked]:
    """Returns candidates, the fastest first, but simpler ones first among those within 1 % of the fastest."""
    best = sorted(candidates, key=lambda each: each.seconds)
    if best:
        # A simpler layout is worth more than a difference that the formulas do not resolve.
        limit = (1 + RESOLUTION) * best[0].seconds
        best.sort(key=lambda each: (each.num_ways if each.seconds <= limit else math.inf, each.seconds))
    return best


def _is_better(one: Candidate, other: Candidate) -> bool:
    """Returns True if one of two layouts of a mesh is faster, or about as fast and simpler."""
    if one.num_ways < other.num_ways:
        return one.seconds <= (1 + RESOLUTION) * other.seconds
    faster_by = 1.0 if one.num_ways == other.num_ways else 1 + RESOLUTION
    return one.seconds * faster_by < other.seconds


def _layouts(
    model: Transformer, batch_size: int, num_devices: int, host_size: int, refused: Counter[str]
) -> Iterator[Layout]:
    for t, p in itertools.product(divisors(num_devices), repeat=2):
        if num_devices % (t * p):
            continue
        replicas = num_devices // (t * p)
        if t > host_size or (num_devices > host_size and host_size % t):
            refused["splits layers over several hosts"] += 1
        elif model.num_heads % t:
            refused["has heads that do not divide among shards"] += 1
        elif model.num_layers % p:
            refused["has layers that do not divide into stages"] += 1
        elif batch_size % replicas:
            refused["has rows that do not divide among replicas"] += 1
        else:
            for e in _expert_sizes(model, replicas):
                yield from _of_mesh(model, batch_size, Layout(replicas // e, p, t, num_expert=e), host_size, refused)


def _of_mesh(
    model: Transformer, batch_size: int, mesh: Layout, host_size: int, refused: Counter[str]
) -> Iterator[Layout]:
    """Yields the layouts of one mesh."""
    p, num_rows = mesh.num_stages, batch_size // mesh.num_replicas
    shards: tuple[Shard, ...] = SHARDS if mesh.num_data > 1 else (None,)
    for b, (schedule, chunks) in itertools.product(_microbatches(num_rows), _schedules(model, p)):
        # Computing again what a zero-bubble schedule keeps for later would take its advantage.
        # Stages do not offload.
        recomputes = _RECOMPUTE[:1] if schedule != "1f1b" else _RECOMPUTE[:2] if p > 1 else _RECOMPUTE
        for (recompute, offload), shard in itertools.product(recomputes, shards):
            if chunks > 1 and (num_rows // b) % p:
                refused["has micro-batches that do not divide among chunks"] += 1
            elif shard == "weights" and p > 1:
                # Gathered weights of a stage stay until the step ends.
                refused["shards weights of stages, which saves no memory"] += 1
            else:
                yield replace(
                    mesh,
                    microbatch_size=b,
                    num_chunks=chunks,
                    recompute=recompute,
                    sequence_parallel=mesh.num_tensor > 1,
                    shard=shard,
                    host_size=host_size,
                    schedule=schedule,
                    offload=offload,
                )


def _expert_sizes(model: Transformer, replicas: int) -> list[int]:
    """Returns the sizes of the axis "expert", which divide the replicas and the experts."""
    if model.experts is None:
        return [1]
    return divisors(math.gcd(replicas, model.experts.num))


def _schedules(model: Transformer, num_stages: int) -> list[tuple[ScheduleName, int]]:
    """Returns schedules with their numbers of chunks."""
    found: list[tuple[ScheduleName, int]] = [("1f1b", chunks) for chunks in _chunks(model, num_stages)]
    if 1 < num_stages <= _MOST_SIMULATED:
        halves = (model.num_layers // num_stages) % 2 == 0
        found += [(each, 1) for each in _ZERO_BUBBLE if each == "zb_h1" or halves]
    return found


def divisors(number: int) -> list[int]:
    """Returns the numbers that divide a number, in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def _microbatches(rows: int) -> Iterator[int]:
    size = 1
    while size <= rows:
        if rows % size == 0:
            yield size
        size *= 2


def _chunks(model: Transformer, num_stages: int) -> list[int]:
    of_stage = model.num_layers // num_stages
    return [chunks for chunks in (1, 2, 3, 4) if of_stage % chunks == 0 and (chunks == 1 or num_stages > 1)]
