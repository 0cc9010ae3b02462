"""Checks the arguments of a `PipelineModel` and resolves their defaults. Tested with the model."""

from __future__ import annotations

from collections.abc import Sequence

from keras_ext.pipeline.schedule import Schedule
from keras_ext.pipeline.schedules import SCHEDULES


def check(schedule: str, **numbers: int | None) -> None:
    """Refuses unknown schedules, and numbers that are not positive integers.

    Raises:
        ValueError: an argument is invalid.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is one of {list(SCHEDULES)}. Received: schedule={schedule!r}.")
    for argument, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{argument} is a positive number. Received: {argument}={number!r}.")


def checked_num_stages(wanted: int | None, num_defined: int | None, num_devices: int, schedule: str) -> int:
    """Returns the number of stages; `num_defined` is the number that the `PipelineStage` layers define, or None.

    Raises:
        ValueError: `wanted` differs from `num_defined`, or the number does not suit the devices and the schedule.
    """
    several = schedule == "interleaved_1f1b"
    number = num_defined or (2 if several else 1) * num_devices
    number = number if wanted is None else wanted
    if num_defined is not None and num_defined != number:
        raise ValueError(f"The layers define {num_defined} stages. Received: num_stages={number}.")
    if number % num_devices or (not several and num_devices > 1 and number != num_devices):
        raise ValueError(
            f"The mesh has {num_devices} devices along 'pipe'; with schedule={schedule!r} they hold "
            f"{'a multiple of' if several else 'exactly'} as many stages. Received: num_stages={number}."
        )
    return number


def recomputed_stages(wanted: str | Sequence[int] | None, num_stages: int) -> frozenset[int]:
    """Returns the stages that recompute their forward pass for the backward pass.

    Raises:
        ValueError: `wanted` is invalid.
    """
    if wanted is None:
        return frozenset()
    if wanted in ("all", "all_but_last"):
        return frozenset(range(num_stages - (wanted == "all_but_last")))
    if isinstance(wanted, str) or not all(isinstance(k, int) and 0 <= k < num_stages for k in wanted):
        raise ValueError(
            f"remat is None, 'all', 'all_but_last' or numbers of stages, 0 to {num_stages - 1}. Received: "
            f"remat={wanted!r}."
        )
    return frozenset(wanted)


def schedule_table(name: str, num_devices: int, num_stages: int, num_microbatches: int) -> Schedule:
    """Returns the schedule with a name for the given numbers of devices, stages and micro-batches."""
    if name == "interleaved_1f1b":
        return SCHEDULES[name](num_devices, num_microbatches, num_stages // num_devices)
    # Several stages on one device are scheduled as if each had its own device.
    return SCHEDULES[name](num_stages, num_microbatches)
