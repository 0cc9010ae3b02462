"""Finds, from the names of a pipeline's steps, the point from which a process handles its own rows only.

A pipeline that ends in ``map`` and ``batch`` gives the same batches if rows are selected before they are mapped, as
long as no step between the two depends on their number or order. Then only a process' own rows are mapped. If arrays
are batched without a map, a process' rows of a batch are one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Steps that pass elements through as they are.
_UNCHANGED = ("prefetch", "options", "assert_cardinality")
#: Steps that pass on, repeat or drop whole batches, and do not look into them.
_OF_BATCHES = (*_UNCHANGED, "repeat", "take", "skip")


@dataclass(frozen=True)
class RowPlan:
    """Positions in a pipeline, counted from its end.

    Attributes:
        batch: the position of the step that makes batches.
        source: the position of the last step that all processes run on all rows; rows are selected after it.
        of_arrays: True if the source are arrays and no step between them and the batch changes elements.
    """

    batch: int
    source: int
    of_arrays: bool = False


#: The name of the step that yields the rows of arrays, ``Dataset.from_tensor_slices``.
ARRAYS = "tensor_slice"


def plan_rows(steps: Sequence[str]) -> RowPlan | str:
    """Returns the point at which rows can be selected, or the reason against selecting them early.

    Args:
        steps: names of the pipeline's steps, from its end to its source: "batch", "map" for a map of one element whose
            result depends on nothing else, "stateful map" for any other map, and the names of other steps.
    """
    batch = 0
    while batch < len(steps) and steps[batch] in _OF_BATCHES:
        batch += 1
    below = batch + 1
    plain = below
    while plain < len(steps) and steps[plain] in _UNCHANGED:
        plain += 1
    if batch < len(steps) and steps[batch] == "batch" and list(steps[plain:]) == [ARRAYS]:
        return RowPlan(batch, plain, of_arrays=True)
    if "map" not in steps[below:] and "stateful map" not in steps[below:]:
        return "no map comes before the batch"
    if steps[batch] != "batch":
        if "batch" not in steps[batch:]:
            return "its batches are not made by `batch`"
        return f"{_named(steps[batch])} comes after the batch; map rows, then call batch"
    source = below
    last_map = None
    while source < len(steps) and (steps[source] in _UNCHANGED or steps[source] == "map"):
        if steps[source] == "map":
            last_map = source
        source += 1
    if last_map is not None:
        return RowPlan(batch, last_map + 1)
    if steps[source] == "stateful map":
        return "the map before the batch keeps state or draws random numbers from it; use tf.random.stateless_*"
    return f"{_named(steps[source])} stands between the map and the batch; call it before the map"


def _named(step: str) -> str:
    return f"a {step}" if step == "stateful map" else f"`{step}`"
