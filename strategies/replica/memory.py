"""The number of bytes of variables on each device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import DistributedVariable
from strategies.topology.devices import short_name


def bytes_per_device(variables: Iterable[Any]) -> dict[str, int]:
    """Counts the bytes of ``variables`` on each device of this process, from the variables themselves.

    Args:
        variables: of Keras or of TensorFlow; of a mirrored one every copy counts, where it is.

    Returns:
        Bytes by device, such as ``"GPU:0"``, in the order of the names.
    """
    counts: dict[str, int] = {}
    for variable in variables:
        value = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
        for component in value.values if isinstance(value, DistributedVariable) else (value,):
            device = short_name(component.device).removeprefix("/device:")
            counts[device] = counts.get(device, 0) + component.shape.num_elements() * component.dtype.size
    return dict(sorted(counts.items()))
