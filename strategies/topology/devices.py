"""The names of this process' devices, and the reduction over them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.topology.gpus import SHARING_VARIABLE, sharing_is_allowed


def pin_gpus(local_rank: int, local_size: int) -> None:
    """Restricts this process to its share of the node's GPUs, by local rank; does nothing without GPUs.

    Call it before TensorFlow is initialised. If only one GPU is visible, because the launcher has assigned it, or the
    program has chosen among them (``tf.config.set_visible_devices``), nothing changes.

    Raises:
        ValueError: the node has fewer GPUs than processes, or TensorFlow has started with all of them.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if local_size == 1 or len(gpus) <= 1 or len(tf.config.get_visible_devices("GPU")) < len(gpus):
        return
    if len(gpus) < local_size and not sharing_is_allowed():
        raise ValueError(
            f"{local_size} processes share this node, which has {len(gpus)} GPUs. Start at most as many processes as "
            "there are GPUs, hide the GPUs (CUDA_VISIBLE_DEVICES=-1), or have processes share them "
            f"({SHARING_VARIABLE}=1)."
        )
    per_process = max(1, len(gpus) // local_size)
    first = local_rank * per_process % len(gpus)
    own = gpus[first : first + per_process]
    try:
        tf.config.set_visible_devices(own, "GPU")
    except RuntimeError as error:
        names = [gpu.name.removeprefix("/physical_device:") for gpu in own]
        raise ValueError(
            f"TensorFlow has started already, with all {len(gpus)} GPUs of this node, so that this process, of local "
            f"rank {local_rank}, cannot be restricted to {', '.join(names)} any more. Make the strategy before "
            "anything that runs TensorFlow: datasets, tensors, models; or have the launcher assign the GPUs "
            "(CUDA_VISIBLE_DEVICES)."
        ) from error


def own_devices() -> list[str]:
    """Returns the full names of this process' GPUs, or of its logical CPU devices if it has none; starts TensorFlow."""
    found = list_own_devices("GPU") or list_own_devices("CPU")
    if not found:
        raise ValueError("TensorFlow has no device in this process.")
    return found


def list_own_devices(kind: str | None = None) -> list[str]:
    """Returns the full names of this process' logical devices: of the kind "CPU" or "GPU", or of all kinds.

    In a cluster TensorFlow lists the other processes' devices, too; without one, names carry no task. Starts
    TensorFlow.
    """
    with tf.init_scope():
        own = tf.DeviceSpec.from_string(tf.constant(0).device)
    specs = {device.name: tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)}
    return [name for name, spec in specs.items() if spec.job is None or (spec.job, spec.task) == (own.job, own.task)]


def is_gpu(device: str) -> bool:
    """Returns True if a device is a GPU, by any spelling of its name; decides how its values are communicated."""
    return _device_type(device if device.startswith("/") else f"/{device}") == "GPU"


def short_name(device: str) -> str:
    """Returns ``/device:GPU:0`` for the full name of a device."""
    spec = tf.DeviceSpec.from_string(device)
    return f"/device:{spec.device_type}:{spec.device_index}"


def full_name(device: str) -> str:
    """Returns ``/job:localhost/replica:0/task:0/device:GPU:0`` for ``/device:GPU:0`` of a single process."""
    return (
        tf.DeviceSpec(job="localhost", replica=0, task=0)
        .make_merged_spec(tf.DeviceSpec.from_string(device))
        .to_string()
    )


def checked_devices(devices: Sequence[str]) -> list[str]:
    """Returns ``devices`` as names like ``/device:GPU:0``; refuses unknown devices and duplicates."""
    if isinstance(devices, str) or not devices:
        raise ValueError(
            "Expected a list of devices such as ['GPU:0', 'GPU:1'], or None for all of them; not a string, not an "
            f"empty list. Received: devices={devices!r}"
        )
    available = [device.name for device in tf.config.list_logical_devices()]
    names: list[str] = []
    for device in devices:
        name = _local_name(device)
        if name is None or name not in available:
            raise ValueError(
                f"This process has no device {device!r}. It has {available}. Received: devices={list(devices)}"
            )
        if name in names:
            raise ValueError(f"Device {device!r} is named twice; name each once. Received: devices={list(devices)}")
        names.append(name)
    return names


def _device_type(device: str) -> str:
    # A separate function, so that a test can make a CPU device pass for a GPU (tests/would_be_gpus.py).
    return str(tf.DeviceSpec.from_string(device).device_type)


def _local_name(device: str) -> str | None:
    """Returns ``/device:GPU:0`` for any spelling of it, or None if it is not a device of this process."""
    path = device if device.startswith("/") else f"/{device}"
    try:
        spec = tf.DeviceSpec.from_string(path if ":" in path else f"{path}:0")
    except ValueError:
        return None
    remote = spec.task not in (None, 0) or spec.job not in (None, "localhost")
    return None if remote else f"/device:{spec.device_type}:{spec.device_index or 0}"
