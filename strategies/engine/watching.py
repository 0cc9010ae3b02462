"""The probes of a process whose job is watched: the reporter reads the engine through them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import tensorflow as tf

from strategies import monitoring
from strategies.topology.devices import is_gpu

if TYPE_CHECKING:
    from strategies.engine.engine import Engine


def watch(engine: Engine) -> None:
    """Has this process report its status if its job is watched; costs one look at the environment otherwise."""
    monitoring.watch(engine.member, _probes(engine))


def _probes(engine: Engine) -> monitoring.Probes:
    member, waits = engine.member, weakref.ref(engine.waits)
    gpus = [device for device in engine.layout.devices if is_gpu(device)]

    def seconds_waited_for_input() -> float | None:
        known = waits()
        return None if known is None else known.seconds().input

    def device_memory() -> tuple[int, int] | None:
        if not gpus:
            return None
        found = [tf.config.experimental.get_memory_info(tf.DeviceSpec.from_string(gpu).to_string()) for gpu in gpus]
        return sum(each["current"] for each in found), sum(each["peak"] for each in found)

    return monitoring.Probes(
        call=lambda: member.position.call,
        is_waiting=member.shares.is_waiting,
        seconds_waited_for_input=seconds_waited_for_input,
        device_memory=device_memory,
    )
