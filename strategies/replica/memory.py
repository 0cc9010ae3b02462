"""The number of bytes of variables on each device, and the most that TensorFlow's allocator has given out there."""

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
        variables: of Keras or of TensorFlow; of a mirrored one every copy counts, where it is. Those that other
            processes hold take nothing; those that are still to be drawn count as they will.

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
    """Counts the most bytes of whole weights that are on each device of this process at once, beside their shards.

    Args:
        variables: of Keras, in the order of their use; those that are not gathered count nothing.
        all_stay: whether weights, once gathered, stay until the step's end.
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
    """Returns the most bytes that were in use at once on each GPU of this process, as TensorFlow's allocator counts.

    That is everything: variables, activations, gradients, buffers of collectives and of cuDNN. It starts TensorFlow.
    CPU devices are left out, whose allocator keeps no peaks.

    Args:
        reset: count anew from now on.

    Returns:
        Bytes by device, such as ``"GPU:0"``, since the process began, or since the last reset; empty without GPUs.
    """
    names = [short_name(device).removeprefix("/device:") for device in list_own_devices("GPU")]
    peaks = {name: int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names}
    if reset:
        for name in names:
            tf.config.experimental.reset_memory_stats(name)
    return peaks
