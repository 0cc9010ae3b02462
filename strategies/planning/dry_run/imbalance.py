"""Finds ranks that have more to do, or to hold, than others, and hosts that send more than others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.passes import work_of
from strategies.planning.dry_run.stage_sizes import StageSizes
from strategies.schedules import Kind
from strategies.schedules.partition import Cost, balanced

#: The fraction of the mean by which a rank may have more before it is reported.
TOLERANCE = 0.1


@dataclass(frozen=True)
class PositionSizes:
    """The sizes of a rank at a position along "pipe".

    Attributes:
        stages: its stages.
        blocks: the blocks of these.
        work: the floating-point operations of a step.
        idle: the part of the time of all passes in which it waits for other positions.
        state_bytes: the bytes of weights, gradients and slots.
        activation_bytes: the largest number of bytes of activations that it holds at a time.
        num_held: the number of forward passes whose activations these are.
    """

    stages: tuple[int, ...]
    blocks: tuple[int, ...]
    work: float
    idle: float
    state_bytes: float
    activation_bytes: float
    num_held: int

    @property
    def num_bytes(self) -> float:
        """All bytes."""
        return self.state_bytes + self.activation_bytes


def position_sizes(job: Job) -> tuple[PositionSizes, ...]:
    """Returns the sizes by position along "pipe"; messages and collectives take no time.

    Args:
        job: the job.
    """
    schedule = job.schedule
    stages = [StageSizes(job, stage) for stage in range(schedule.num_stages)]
    times = schedule.times(lambda action: work_of(action, stages[action.stage]))
    longest = max(end for _, end in times.values())
    work = [0.0] * schedule.num_devices
    for action, (start, end) in times.items():
        work[schedule.device_of(action.stage)] += end - start
    found = []
    for position in range(schedule.num_devices):
        own = [each for each in stages if schedule.device_of(each.stage) == position]
        held, num_held = _most_held(job, position, stages)
        found.append(
            PositionSizes(
                tuple(each.stage for each in own),
                tuple(each.num_blocks for each in own),
                work[position],
                1 - work[position] / longest,
                sum(each.state_bytes for each in own),
                held,
                num_held,
            )
        )
    return tuple(found)


def _most_held(job: Job, position: int, stages: Sequence[StageSizes]) -> tuple[float, int]:
    """Returns the most bytes of activations that a position holds at a time, and the number of their passes."""
    most = (0.0, 0)
    num_bytes, number = 0.0, 0
    for action in job.schedule.devices[position]:
        # Gradients of weights are the last that need activations.
        if action.kind in (Kind.FORWARD, job.schedule.kinds[-1]):
            sign = 1 if action.kind is Kind.FORWARD else -1
            num_bytes += sign * stages[action.stage].activation_bytes
            number += sign
            most = max(most, (num_bytes, number))
    return most


def imbalances(
    job: Job, positions: Sequence[PositionSizes], leaving: Mapping[int, float], tolerance: float = TOLERANCE
) -> list[str]:
    """Returns a sentence for each imbalance.

    Args:
        job: the job.
        positions: the sizes by position along "pipe".
        leaving: the bytes that leave each host.
        tolerance: the fraction of the mean by which a position or host may have more.
    """
    found = []
    work = [each.work for each in positions]
    best = most_even_stages(job)
    for position, each in enumerate(positions):
        ratio = each.work / mean(work)
        if ratio > 1 + tolerance:
            ends = " and the logits" if job.schedule.num_stages - 1 in each.stages else ""
            found.append(
                f"Position {position} along 'pipe' computes {ratio:.2f} times the mean of all positions: "
                f"{_blocks(each.blocks)}{ends}. The others wait for it."
            )
    if found and best != job.stages:
        found.append(f"The most even stages are --stages={','.join(map(str, best))}.")
    held = [each.num_bytes for each in positions]
    if max(held) > (1 + tolerance) * mean(held):
        most = held.index(max(held))
        found.append(
            f"Position {most} along 'pipe' holds {max(held) / 1e9:.1f} GB, {max(held) / mean(held):.2f} times the mean "
            f"of all positions; {positions[most].activation_bytes / 1e9:.1f} GB are activations of "
            f"{positions[most].num_held} forward passes."
        )
    if leaving and max(leaving.values()) > (1 + tolerance) * mean(leaving.values()):
        most = max(leaving, key=lambda host: leaving[host])
        found.append(
            f"Host {most} sends {leaving[most] / 1e9:.1f} GB to others, {leaving[most] / mean(leaving.values()):.2f} "
            f"times the mean of the hosts that send."
        )
    return found


def most_even_stages(job: Job) -> tuple[int, ...]:
    """Returns the numbers of blocks with which the heaviest stage is lightest, the logits included."""
    number, first = len(job.stages), StageSizes(job, 0)
    if number > job.model.num_layers:
        return job.stages
    links = [Cost(f"block {k}") for k in range(job.model.num_layers)]
    weights = [first.block_work] * len(links)
    weights[-1] += first.logits_work
    starts = balanced(links, weights, number).starts
    return tuple(end - start for start, end in zip(starts, (*starts[1:], len(links)), strict=True))


def _blocks(blocks: Sequence[int]) -> str:
    return f"{sum(blocks)} block{'' if sum(blocks) == 1 else 's'}"
