"""The probes of a process whose job is watched: the reporter reads the engine through them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import tensorflow as tf

from strategies import monitoring
from strategies.control_plane import Member
from strategies.steps.waiting import Waits
from strategies.topology.devices import is_gpu


def watch(member: Member, waits: Waits, devices: Sequence[str]) -> None:
    """Has this process report its status if its job is watched; costs one look at the environment otherwise.

    Args:
        member: this process in its job.
        waits: the waiting times of its strategy.
        devices: full names of its devices.
    """
    waits_of_strategy, gpus = weakref.ref(waits), [device for device in devices if is_gpu(device)]

    def seconds_waited_for_input() -> float | None:
        known = waits_of_strategy()
        return None if known is None else known.seconds().input

    def device_memory() -> tuple[int, int] | None:
        if not gpus:
            return None
        found = [tf.config.experimental.get_memory_info(gpu.rpartition("/device:")[2]) for gpu in gpus]
        return sum(each["current"] for each in found), sum(each["peak"] for each in found)

    monitoring.watch(
        member,
        monitoring.Probes(
            call=lambda: member.position.call,
            is_waiting=member.shares.is_waiting,
            is_waiting_current=member.shares.is_current,
            seconds_waited_for_input=seconds_waited_for_input,
            device_memory=device_memory,
        ),
    )
