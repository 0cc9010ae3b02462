"""CPU devices that pass for GPUs, so that graphs for GPUs can be built and inspected on any machine.

Logical device CPU:0 stays the host; CPU:1 and higher pass for GPUs. TensorFlow's own decisions by kind of device stay
those for CPUs: only the decisions of our packages change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import tensorflow as tf

from strategies.topology import devices


def is_would_be_gpu(device: str) -> bool:
    """Returns True if a device, by its name, passes for a GPU."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type == "GPU" or (spec.device_type == "CPU" and (spec.device_index or 0) > 0)


@contextlib.contextmanager
def would_be_gpus() -> Iterator[None]:
    """Makes all logical CPU devices but the first pass for GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_device_type", lambda device: "GPU" if is_would_be_gpu(device) else "CPU")
        yield
