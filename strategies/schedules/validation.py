"""Checks that a schedule computes a pipeline. Pure: it raises, or returns nothing."""

from __future__ import annotations

from strategies.schedules.messages import with_messages
from strategies.schedules.schedule import COMPUTATIONS, Action, Schedule, computations, fault


def validate(schedule: Schedule) -> None:
    """Refuses a table that does not compute a pipeline.

    Raises:
        ValueError: an action is on the wrong device, is missing, occurs twice, or waits forever. The message shows the
            actions of all devices, with the fault marked.
    """
    seen: dict[Action, int] = {}
    for k, actions in enumerate(schedule.devices):
        for position, action in enumerate(actions):
            if not (0 <= action.stage < schedule.num_stages and 0 <= action.microbatch < schedule.num_microbatches):
                raise fault(schedule, k, position, f"{action} names a stage or micro-batch that does not exist")
            if schedule.device_of(action.stage) != k:
                raise fault(schedule, k, position, f"{action} belongs on device {schedule.device_of(action.stage)}")
            if action in seen:
                raise fault(schedule, k, position, f"{action} occurs twice")
            if action.kind in COMPUTATIONS and action.kind not in schedule.kinds:
                raise fault(schedule, k, position, f"{action} is a whole backward pass, but others are split")
            seen[action] = position
    for stage in range(schedule.num_stages):
        for kind in schedule.kinds:
            for microbatch in range(schedule.num_microbatches):
                action = Action(stage, kind, microbatch)
                if action not in seen:
                    k = schedule.device_of(stage)
                    raise fault(schedule, k, len(schedule.devices[k]), f"{action} is missing")
    with_its_messages = any(action.kind not in COMPUTATIONS for action in seen)
    if with_its_messages:
        for k, actions in enumerate(with_messages(computations(schedule)).devices):
            missing = [action for action in actions if action not in seen]
            if missing:
                raise fault(schedule, k, len(schedule.devices[k]), f"{missing[0]} is missing")
    # Raises if an action waits forever.
    schedule.order()
