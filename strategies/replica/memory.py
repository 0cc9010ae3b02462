"""Bytes of variables on each device, and the peak memory of TensorFlow's allocator there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from strategies import planning
from strategies._tf_internals import DistributedVariable
from strategies.replica.deferred import RemoteVariable
from strategies.topology.devices import list_own_devices, short_name


def bytes_per_device(variables: Iterable[Any]) -> dict[str, int]:
    """Counts the bytes of ``variables`` on each device of this process, from the variables themselves.

    Args:
        variables: Keras or TensorFlow variables. Each copy of a mirrored variable counts on its device. Variables of
            other processes count as 0 bytes; deferred ones count in full.

    Returns:
        Bytes by device, such as ``"GPU:0"``, in the order of the names.
    """
    counts: dict[str, int] = {}
    for variable in variables:
        value = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
        for component in value.values if isinstance(value, DistributedVariable) else (value,):
            if isinstance(component, RemoteVariable):
                continue
            device = short_name(component.device).removeprefix("/device:")
            counts[device] = counts.get(device, 0) + component.shape.num_elements() * component.dtype.size
    return dict(sorted(counts.items()))


def gathered_bytes_per_device(variables: Iterable[Any], *, all_stay: bool = False) -> dict[str, int]:
    """Returns the peak bytes of gathered weights on each device of this process, in addition to their shards.

    Args:
        variables: Keras variables in the order of their use; those that are not gathered count as 0 bytes.
        all_stay: True if weights, once gathered, stay until the step's end.
    """
    values = [each.value for each in variables if not getattr(each.value, "has_own_rows", False)]
    units = {id(unit): unit for value in values if (unit := getattr(value, "unit", None)) is not None}
    on_device: dict[str, list[planning.Unit]] = {}
    for unit in units.values():
        for device in unit.devices:
            name = short_name(device).removeprefix("/device:")
            on_device.setdefault(name, []).append(planning.Unit(unit.num_bytes, unit.is_small))
    return {name: planning.gathered_bytes(own, all_stay=all_stay) for name, own in sorted(on_device.items())}


def peak_bytes_per_device(*, reset: bool = False) -> dict[str, int]:
    """Returns the peak number of bytes in use on each GPU of this process, as TensorFlow's allocator counts them.

    It includes everything: variables, activations, gradients, buffers of collectives and of cuDNN. The call initializes
    TensorFlow. CPU devices are left out, since their allocator records no peaks.

    Args:
        reset: reset the peaks after reading them.

    Returns:
        Bytes by device, such as ``"GPU:0"``, since the process began, or since the last reset; empty without GPUs.
    """
    names = [short_name(device).removeprefix("/device:") for device in list_own_devices("GPU")]
    peaks = {name: int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names}
    if reset:
        for name in names:
            tf.config.experimental.reset_memory_stats(name)
    return peaks
