"""Checks the arguments of a `PipelineModel` and resolves their defaults. Most tests are those of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strategies import layer_api
from strategies.schedules import SCHEDULES, Schedule, validate

_logger = logging.getLogger(__name__)

#: The numbers of stages on each device with the schedules that have more than one; None for any number.
NUM_STAGES_PER_DEVICE: Mapping[Any, int | None] = {"interleaved_1f1b": None, "zb_v": 2, "v_half": 2}

#: A schedule by its name, or a function of the numbers of stages and of micro-batches that makes one.
Scheduled = str | Callable[[int, int], Schedule]


def check(schedule: Scheduled, **numbers: int | None) -> None:
    """Refuses unknown schedules, and numbers that are not positive integers.

    Raises:
        ValueError: an argument is invalid.
    """
    if not callable(schedule) and schedule not in SCHEDULES:
        raise ValueError(
            f"schedule is one of {list(SCHEDULES)}, or a function that makes one. Received: schedule={schedule!r}."
        )
    for argument, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{argument} is a positive number. Received: {argument}={number!r}.")


def checked_num_stages(wanted: int | None, num_defined: int | None, num_devices: int, schedule: Scheduled) -> int:
    """Returns the number of stages; `num_defined` is the number that the `PipelineStage` layers define, or None.

    Raises:
        ValueError: `wanted` differs from `num_defined`, or the number does not suit the devices and the schedule.
    """
    per_device = NUM_STAGES_PER_DEVICE.get(schedule, 1)
    number = num_defined or (per_device or 2) * num_devices
    number = number if wanted is None else wanted
    if num_defined is not None and num_defined != number:
        raise ValueError(f"The layers define {num_defined} stages. Received: num_stages={number}.")
    # On one device, any number is scheduled as if each stage, or each two, had a device of their own.
    multiple = num_devices * (per_device or 1)
    takes_multiples = per_device is None or num_devices == 1
    if number % multiple or not (takes_multiples or number == multiple):
        how_many = {None: "a multiple of", 1: "exactly", 2: "exactly twice"}[per_device]
        raise ValueError(
            f"The mesh has {num_devices} device(s) along 'pipe'; with schedule={schedule!r} they hold "
            f"{how_many} as many stages. Received: num_stages={number}."
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


def schedule_table(name: Scheduled, num_devices: int, num_stages: int, num_microbatches: int) -> Schedule:
    """Returns the schedule with a name, or of a function, for these numbers of devices, stages and micro-batches.

    Raises:
        ValueError: the function returns a table that does not compute a pipeline of these numbers.
    """
    if not isinstance(name, str):
        return _made_by(name, num_stages, num_microbatches)
    if name == "interleaved_1f1b":
        return SCHEDULES[name](num_devices, num_microbatches, num_stages // num_devices)
    # Several stages on one device are scheduled as if each, or each two, had a device of their own.
    return SCHEDULES[name](num_stages // (NUM_STAGES_PER_DEVICE.get(name) or 1), num_microbatches)


def _made_by(function: Callable[[int, int], Schedule], num_stages: int, num_microbatches: int) -> Schedule:
    """Returns the schedule that a user's function makes for stages on a device each, once it is checked."""
    made = function(num_stages, num_microbatches)
    if not isinstance(made, Schedule):
        raise ValueError(
            f"The function of a schedule returns a keras_ext.Schedule. Received: {made!r} for {num_stages} stages and "
            f"{num_microbatches} micro-batches."
        )
    numbers = (made.num_devices, made.num_stages, made.num_microbatches)
    if numbers != (num_stages, num_stages, num_microbatches):
        raise ValueError(
            f"The function of a schedule was asked for {num_stages} stages, on a device each, and {num_microbatches} "
            f"micro-batches. Received: a table of {numbers[0]} devices, {numbers[1]} stages and {numbers[2]} "
            "micro-batches."
        )
    validate(made)
    return made


def warn_outside_scope(name: str, num_positions: int) -> None:
    """Logs that a model stays on one device, if it is made into a pipeline where no strategy has a mesh."""
    if num_positions == 1 and not layer_api.is_in_scope():
        _logger.warning("PipelineModel was made outside of strategy.scope(): %r stays on one device.", name)
