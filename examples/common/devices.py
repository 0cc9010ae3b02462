"""Devices and strategy, made from the options."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Literal

import tensorflow as tf

import strategies
from common.options import OptionError

_log = logging.getLogger(__name__)


def mesh_of(text: str | None) -> dict[str, int] | None:
    """Returns the mesh axis sizes written as `data=2,pipe=2`; None if `text` is None.

    Raises:
        OptionError: malformed text, or an unknown axis.
    """
    if text is None:
        return None
    try:
        return strategies.DeviceMesh.axes_of(text)
    except ValueError as error:
        raise OptionError(f"--mesh: {error}") from error


def make_strategy(
    name: str,
    num_devices: int | None = None,
    mesh: dict[str, int] | None = None,
    shard: Literal["optimizer", "weights"] | None = None,
) -> tf.distribute.Strategy:
    """Returns the strategy `name` over `num_devices` devices of this process, with the given mesh and shards.

    Call it before anything else initialises TensorFlow: afterwards, neither logical CPU devices nor the connection to
    other processes can be made.

    Raises:
        OptionError: an unknown name, or the strategy refuses the configuration, for the reason given.
    """
    makers: dict[str, Callable[[], tf.distribute.Strategy]] = {
        "mirrored": lambda: strategies.MirroredStrategy(devices, mesh=mesh, shard=shard),
        "multi_worker": lambda: strategies.MultiWorkerMirroredStrategy(mesh=mesh, shard=shard),
        "horovod": lambda: strategies.HorovodStrategy(mesh=mesh, shard=shard),
    }
    if name not in makers:
        raise OptionError(f"--strategy: expected one of {list(makers)}, received {name!r}.")
    if name != "mirrored" and num_devices is not None and tf.config.list_physical_devices("GPU"):
        raise OptionError(
            f"--devices={num_devices}: with --strategy={name} the visible GPUs are divided among the processes. Start "
            "another number of processes, or choose the visible GPUs with CUDA_VISIBLE_DEVICES."
        )
    try:
        world_size = 1 if name == "mirrored" else strategies.Cluster.from_environment().world_size
    except ValueError as error:
        raise OptionError(f"--strategy={name}: {error}") from error
    devices = choose_devices(num_devices, devices_of_a_process(mesh, world_size))
    try:
        return makers[name]()
    except (ImportError, ValueError) as error:
        raise OptionError(f"--strategy={name}: {error}") from error


def devices_of_a_process(mesh: dict[str, int] | None, world_size: int) -> int:
    """Returns the number of devices that each process needs: its part of the mesh, at least one.

    With data=-1, which is inferred later, it is the number of devices of one replica.

    Args:
        mesh: axis sizes.
        world_size: number of processes.
    """
    sizes = mesh or {"data": -1}
    num_devices = math.prod(size for size in sizes.values() if size > 0)
    return num_devices if sizes.get("data") == -1 else max(1, num_devices // world_size)


def choose_devices(num_devices: int | None, num_needed: int = 1) -> list[str]:
    """Returns the names of GPUs or, if there is no GPU, of logical CPU devices, which it creates.

    Logical devices share the machine's cores: they show that several devices give the numbers of one, but add no speed.

    Args:
        num_devices: number of devices; None for all GPUs, or for `num_needed` logical CPU devices.
        num_needed: number of devices that the mesh needs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        count = len(gpus) if num_devices is None else num_devices
        if count > len(gpus):
            raise OptionError(
                f"--devices: at most {len(gpus)}, the number of GPUs found, received {count}. "
                f"Ask for fewer, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1 to use logical CPU devices."
            )
        _log.info("devices: %d of %d GPU(s)", count, len(gpus))
        return [f"GPU:{index}" for index in range(count)]
    count = num_needed if num_devices is None else num_devices
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    _log.info("devices: no GPU found; using %d logical CPU device(s), which share this machine's cores", count)
    return [f"CPU:{index}" for index in range(count)]
