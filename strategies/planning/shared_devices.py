"""The length of a pipeline's schedule on devices that may share processors. Pure.

GPUs compute independently of each other. Logical devices of one CPU share its cores: the more of them compute, the
slower each one is. So actions are simulated as jobs whose rate depends on the number of jobs that run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from strategies.schedules import Action, Schedule
from strategies.schedules.schedule import prerequisites

#: Takes the number of devices that compute; returns how many times slower each of them is than alone.
Slowdown = Callable[[int], float]


@dataclass
class _Device:
    """A device during the simulation.

    Attributes:
        actions: what it computes, in order.
        position: the position of the current action.
        left: the seconds that the current action still needs if this device computed alone; None before it starts.
    """

    actions: tuple[Action, ...]
    position: int = 0
    left: float | None = None

    @property
    def current(self) -> Action | None:
        """The action that runs, or that runs next; None at the end."""
        return self.actions[self.position] if self.position < len(self.actions) else None


def schedule_seconds(
    schedule: Schedule,
    seconds: Callable[[Action], float],
    *,
    slowdown: Slowdown = lambda num_devices: 1.0,
    message_seconds: float = 0.0,
) -> float:
    """Returns the seconds of a batch.

    Args:
        schedule: a table of computations, without messages.
        seconds: returns the seconds of an action on a device that computes alone.
        slowdown: see `Slowdown`.
        message_seconds: the time after which a result is on another device. Messages take no device's time.

    Raises:
        ValueError: some actions never start.
    """
    devices = [_Device(actions) for actions in schedule.devices]
    ends: dict[Action, float] = {}
    now = 0.0
    while any(device.current for device in devices):
        starts = [_start(schedule, device, k, ends, message_seconds) for k, device in enumerate(devices)]
        for device, start in zip(devices, starts, strict=True):
            if device.left is None and device.current is not None and start <= now:
                device.left = seconds(device.current)
        running = [device for device in devices if device.left is not None]
        later = [start for device, start in zip(devices, starts, strict=True) if device.left is None and start > now]
        rate = slowdown(len(running)) if running else 1.0
        until = min([math.inf, *later, *(now + _left(device) * rate for device in running)])
        if math.isinf(until):
            raise ValueError(f"The schedule {schedule.name!r} cannot run: after {len(ends)} actions all devices wait.")
        for device in running:
            device.left = _left(device) - (until - now) / rate
            if device.current is not None and device.left <= 1e-12:
                ends[device.current] = until
                device.position, device.left = device.position + 1, None
        now = until
    return now


def _left(device: _Device) -> float:
    return device.left or 0.0


def _start(
    schedule: Schedule, device: _Device, position: int, ends: dict[Action, float], message_seconds: float
) -> float:
    """Returns the earliest start of a device's current action; infinite if it needs one that has not ended."""
    if device.current is None:
        return math.inf
    start = 0.0
    for need in prerequisites(device.current, schedule.num_stages, schedule.backward):
        if need not in ends:
            return math.inf
        sent = schedule.device_of(need.stage) != position
        start = max(start, ends[need] + (message_seconds if sent else 0.0))
    return start
