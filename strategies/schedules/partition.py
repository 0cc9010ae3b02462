"""Partitions a chain of layers into stages. Pure: numbers in, cuts out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from strategies.evenly import even_bounds
from strategies.text_table import text_table


@dataclass(frozen=True)
class Cost:
    """The cost of one link of the chain: a layer, or several that cannot be separated.

    Attributes:
        name: the name of the layer.
        seconds: the time of its forward and backward pass with one micro-batch.
        parameters: the number of elements of its weights.
        activation_bytes: the bytes that it holds for the backward pass of one micro-batch.
    """

    name: str
    seconds: float = 0.0
    parameters: int = 0
    activation_bytes: int = 0


@dataclass(frozen=True)
class Partition:
    """A partition of a chain into stages of consecutive links. Prints as a table.

    Attributes:
        links: the links of the chain.
        starts: the index of the first link of each stage.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(8), keras.layers.Dense(3)]
        partition = keras_ext.PipelineModel(layers, num_stages=2, partition="parameters").partition
        print(partition)
        names = [[link.name for link in stage] for stage in partition.stages]
    """

    links: tuple[Cost, ...]
    starts: tuple[int, ...]

    @property
    def stages(self) -> list[tuple[Cost, ...]]:
        """The links of each stage."""
        return [self.links[start:end] for start, end in itertools.pairwise((*self.starts, len(self.links)))]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("stage", "layers", "from", "to", "ms", "parameters", "activations, bytes")]
        for number, stage in enumerate(self.stages):
            time = f"{1e3 * sum(link.seconds for link in stage):.2f}"
            numbers = (sum(link.parameters for link in stage), sum(link.activation_bytes for link in stage))
            names = (stage[0].name, stage[-1].name)
            rows.append((str(number), str(len(stage)), *names, time, *(f"{each:,}" for each in numbers)))
        return "\n".join(text_table(rows, left=(2, 3)))


def uniform(links: Sequence[Cost], num_stages: int) -> Partition:
    """Returns stages with equal numbers of links; if there is a remainder, the first stages have one link more.

    Raises:
        ValueError: fewer links than stages.
    """
    _check(links, num_stages)
    return Partition(tuple(links), tuple(even_bounds(len(links), num_stages)[:-1]))


def balanced(
    links: Sequence[Cost],
    weights: Sequence[float],
    num_stages: int,
    *,
    memory: Sequence[Sequence[float]] | None = None,
    max_memory: Sequence[float] | float | None = None,
) -> Partition:
    """Returns the partition into contiguous stages whose heaviest stage is as light as possible.

    The result is exact, by dynamic programming over the first links and stages. Among equally good partitions, it is
    the one with the smallest sum of squares of the stages' weights.

    Args:
        links: the links of the chain.
        weights: the weight of each link, such as its seconds.
        num_stages: number of stages.
        memory: for each stage, the bytes that each link would need in it; zeros if left out.
        max_memory: the limit of every stage, or one limit per stage, in bytes; no limit if left out.

    Raises:
        ValueError: fewer links than stages; no cut keeps the limit.
    """
    _check(links, num_stages)
    number = len(links)
    weight_before = [0.0, *itertools.accumulate(weights)]
    memory = memory or [[0.0] * number] * num_stages
    memory_before = [[0.0, *itertools.accumulate(of_stage)] for of_stage in memory]
    if max_memory is None:
        limits = [math.inf] * num_stages
    else:
        limits = [max_memory] * num_stages if isinstance(max_memory, (int, float)) else list(max_memory)
        if len(limits) != num_stages:
            raise ValueError(f"There is a limit of memory for each of {num_stages} stages. Received: {limits}.")
    # For each n, the best partition of the first n links into k stages: (heaviest, sum of squares). `cuts` has the
    # start of its last stage.
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [(math.inf, math.inf)] * number
    cuts: list[list[int]] = []
    for k in range(num_stages):
        row: list[tuple[float, float]] = [(math.inf, math.inf)] * (number + 1)
        cut = [0] * (number + 1)
        for end in range(k + 1, number + 1):
            for start in range(k, end):
                if memory_before[k][end] - memory_before[k][start] > limits[k]:
                    continue
                weight = weight_before[end] - weight_before[start]
                candidate = (max(best[start][0], weight), best[start][1] + weight * weight)
                if candidate < row[end]:
                    row[end], cut[end] = candidate, start
        best = row
        cuts.append(cut)
    if math.isinf(best[number][0]):
        raise ValueError(
            f"No cut into {num_stages} stages keeps each of them below its limit of memory. Use more stages, or "
            f"rematerialization. Received: {max(each[-1] for each in memory_before):,.0f} bytes in {number} links, the "
            f"largest {max(map(max, memory)):,.0f}, and limits of {', '.join(f'{limit:,.0f}' for limit in limits)}."
        )
    starts: list[int] = []
    end = number
    for cut in reversed(cuts):
        end = cut[end]
        starts.insert(0, end)
    return Partition(tuple(links), tuple(starts))


def at(links: Sequence[Cost], names: Sequence[str]) -> Partition:
    """Returns stages that begin at the first link and at the links with these names.

    Raises:
        ValueError: a name is unknown, that of the first link, or not in the chain's order.
    """
    # If a layer is called several times, its first call begins the stage.
    positions = {link.name: i for i, link in reversed(list(enumerate(links)))}
    unknown = [name for name in names if name not in positions]
    starts = [0, *(positions[name] for name in names if name in positions)]
    if unknown or any(b <= a for a, b in itertools.pairwise(starts)):
        raise ValueError(
            "A cut is before a layer that is not the first, and cuts come in the order of the layers, "
            f"{[link.name for link in links]}. Received: {list(names)}."
        )
    return Partition(tuple(links), tuple(starts))


def _check(links: Sequence[Cost], num_stages: int) -> None:
    if not 1 <= num_stages <= len(links):
        raise ValueError(
            f"{len(links)} layers, or groups of layers that cannot be parted, make 1 to {len(links)} stages. "
            f"Received: num_stages={num_stages}."
        )
