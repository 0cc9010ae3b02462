"""The devices of a case's process. TensorFlow's devices are configured once per process."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

# A logical GPU needs a memory limit. This is enough for every case on two of them, on a GPU with 16 GB.
_LOGICAL_GPU_MB = 6144


@dataclass(frozen=True)
class Setting:
    """The devices of a case, and the size of its models.

    Attributes:
        devices: their short names; all are logical devices of one physical device.
        small: whether models are small, for CPUs, which only show that the cases run.
    """

    devices: tuple[str, ...]
    small: bool


def prepare(kind: str, num_devices: int) -> Setting:
    """Makes `num_devices` logical devices of the first GPU, or of the CPU; call it before TensorFlow starts."""
    if kind == "gpu":
        gpu = tf.config.list_physical_devices("GPU")[0]
        tf.config.set_visible_devices(gpu, "GPU")
        if num_devices == 1:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=_LOGICAL_GPU_MB)
            tf.config.set_logical_device_configuration(gpu, [part] * num_devices)
    else:
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    return Setting(tuple(f"{kind.upper()}:{index}" for index in range(num_devices)), small=kind != "gpu")


def peak_mb(device: str) -> float | None:
    """Returns the peak MB of `device` since the last call of `reset_peak`; None on CPUs, which do not count."""
    return float(tf.config.experimental.get_memory_info(device)["peak"]) / 1e6 if "GPU" in device else None


def reset_peak(device: str) -> None:
    """Resets the peak of `device`, if it is counted."""
    if "GPU" in device:
        tf.config.experimental.reset_memory_stats(device)
