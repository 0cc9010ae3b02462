"""Groups of weights that share a message: buckets of gradients, and units of sharded weights.

They are made by the functions with which a job makes them. With ``shard=``, weights that lie at different coordinates,
as those that are split over "tensor" and those that are not, are in different groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategies.buckets import make_buckets
from strategies.planning.dry_run.job import Job
from strategies.planning.dry_run.stage_sizes import StageSizes, StageWeight
from strategies.planning.held_bytes import has_room, is_small

#: Bytes of a weight, and of its gradient.
WEIGHT_BYTES = 4
#: A weight after its position in the order of use, and its stage.
_Used = tuple[int, int, StageWeight]


@dataclass(frozen=True)
class WeightUnit:
    """Sharded weights that are gathered together.

    Attributes:
        num_bytes: the bytes of all of them.
        first_use: the position, in the order of use, of the weight that is used first.
        first_part: the stage and part that use it.
        is_small: whether they stay until the end of the step.
        in_backward: whether the backward pass reads one of them.
    """

    num_bytes: int
    first_use: int
    first_part: tuple[int, str]
    is_small: bool
    in_backward: bool


def gradient_buckets(job: Job, stages: Sequence[StageSizes]) -> list[int]:
    """Returns the bytes of each bucket of the gradients of stages, in the order of communication.

    Args:
        job: the job.
        stages: the stages of one rank.
    """
    found = []
    for weights in _groups(job, stages) if job.layout.shard else [_created(stages)]:
        sizes = [WEIGHT_BYTES * each.parameters for *_, each in weights]
        found += [each.num_bytes for each in make_buckets(sizes, ["float32"] * len(sizes), job.bucket_bytes)]
    return found


def weight_units(job: Job, stages: Sequence[StageSizes]) -> list[WeightUnit]:
    """Returns the units of the weights of stages, in the order in which their gradients are reduced.

    Args:
        job: the job.
        stages: the stages of one rank.
    """
    found: list[WeightUnit] = []
    for weights in _groups(job, stages):
        last: dict[bool, int] = {}
        for use, stage, weight in weights:
            num_bytes = WEIGHT_BYTES * weight.parameters
            small = is_small(num_bytes, job.bucket_bytes)
            if small not in last or not has_room(found[last[small]].num_bytes, num_bytes, job.bucket_bytes):
                last[small] = len(found)
                found.append(WeightUnit(0, use, (stage, weight.part), small, False))
            unit = found[last[small]]
            found[last[small]] = replace(
                unit,
                num_bytes=unit.num_bytes + num_bytes,
                in_backward=unit.in_backward or weight.in_backward,
            )
    return found


def _created(stages: Sequence[StageSizes]) -> list[_Used]:
    """Returns the weights in the order of their creation: that of their use, but a shared table comes first."""
    pairs = [(sizes.stage, weight) for sizes in stages for weight in sizes.weights]
    found = [(use, stage, weight) for use, (stage, weight) in enumerate(pairs)]
    return sorted(found, key=lambda each: not each[2].is_shared)


def _groups(job: Job, stages: Sequence[StageSizes]) -> list[list[_Used]]:
    """Returns the weights by their coordinates, in the order of creation of the first of each."""
    found: dict[object, list[_Used]] = {}
    is_one = job.layout.num_stages == job.layout.num_tensor == 1
    for each in _created(stages):
        found.setdefault(is_one or (each[2].is_split, each[2].is_shared), []).append(each)
    return list(found.values())
