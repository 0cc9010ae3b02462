"""MirroredStrategy: one process, one replica of the model on each of its devices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies import _keras_hooks, inputs
from strategies._tf_internals import MirroredExtended
from strategies.engine import DataParallelExtended
from strategies.mesh import DeviceMesh

# Process-wide because TensorFlow's numbering of collectives is. The stock strategies' numbers begin at 1.
_KEYS_PER_STRATEGY = 1000
_strategies_made = itertools.count(1)


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """Synchronous data parallelism over the devices of one process, with the numbers of one device.

    Each device holds a copy of the variables and takes an equal run of the rows of every global batch. Weights,
    metrics and logs equal those of plain Keras on one device with the same global batches, to float32 rounding,
    whatever the batch size.

    It is a ``tf.distribute.MirroredStrategy`` to Keras, to ``tf.data`` and to custom training loops: make the model,
    the optimizer and the metrics inside ``strategy.scope()``, call ``fit`` anywhere.

    Layers that look at the whole batch see their replica's rows, as everywhere in data parallelism:
    ``BatchNormalization`` normalises by them, and its moving statistics are the mean over the replicas of what each
    saw, weighed by rows; they agree on all devices after every step. ``BatchNormalization(synchronized=True)``
    sees the global batch. ``Dropout`` draws a mask of its own on each replica.

    Args:
        devices: device strings such as ``["GPU:0", "GPU:1"]``. None means all GPUs, or, where there is no GPU, all
            logical CPU devices (one, unless ``tf.config.set_logical_device_configuration`` made more).
        cross_device_ops: how gradients are summed, a ``tf.distribute.CrossDeviceOps``. None means NCCL for GPUs and
            plain additions for CPU devices, which share their memory.
        mesh: sizes of named mesh axes, as in ``{"data": 4}``; one may be -1, "what is left". Only ``"data"`` may
            exceed 1 in this release.

    Raises:
        ValueError: a device named twice or not there, no device, a mesh that does not fit the devices.

    Source: the interface of ``tf.distribute.MirroredStrategy``, TensorFlow 2.21.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        found = _checked_devices(_local_devices() if devices is None else devices)
        self._mesh = DeviceMesh.from_devices(found, mesh)
        if self._mesh.num_replicas != self._mesh.size:
            raise ValueError(
                "In this release only the mesh axis 'data' may be larger than 1: a replica is one device. "
                f"Received: mesh={dict(mesh or {})} over {len(found)} devices."
            )
        # Collectives of one process meet by number: those of another strategy must not bear the same.
        self._collective_key_base = _KEYS_PER_STRATEGY * next(_strategies_made)
        _keras_hooks.install()
        reduction = cross_device_ops or _default_reduction(found)
        tf.distribute.Strategy.__init__(self, _MirroredExtended(self, found, reduction))

    @property
    def mesh(self) -> DeviceMesh:
        """The devices by their coordinates."""
        return self._mesh


class _MirroredExtended(DataParallelExtended, MirroredExtended):
    """TensorFlow's mirrored variables and replica threads, run by our engine."""

    def __init__(self, container_strategy: Any, devices: Sequence[str], cross_device_ops: Any) -> None:
        self._start_engine()
        super().__init__(container_strategy, devices=devices, cross_device_ops=cross_device_ops)
        self._make_weights()
        for launcher in getattr(self._collective_ops, "_launchers", ()):
            # TensorFlow numbers collectives anew at every call of a tf.function, by a placeholder that its loops do
            # not feed: steps_per_execution > 1 fails. All shapes here are static, so one number each is enough.
            launcher._use_unique_instance_key = lambda: False

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if options is not None or not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        return inputs.distribute(dataset, self._num_replicas_in_sync)


def _default_reduction(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
    """Returns what sums gradients; None for TensorFlow's own choice, collectives."""
    if all(":CPU:" in device for device in devices):
        # Between logical CPU devices collectives copy what plain additions share.
        return tf.distribute.ReductionToOneDevice(accumulation_fn=_add_in_turn)
    return None


def _add_in_turn(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns ``(v0 + v1) + v2 ...``, each addition on the device of the value it adds.

    TensorFlow rewrites one sum of three and more into a variable to which each is added when it arrives: more
    traffic, and a rounding that differs from run to run.
    """
    total = values[0]
    for value in values[1:]:
        with tf.device(value.device):
            total = tf.add(total, value)
    return total


def _local_devices() -> list[str]:
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def _checked_devices(devices: Sequence[str]) -> list[str]:
    """Returns ``devices`` as names like ``/device:GPU:0``; refuses what is not there, or there twice."""
    if isinstance(devices, str) or not devices:
        raise ValueError(
            "Expected a list of devices such as ['GPU:0', 'GPU:1'], or None for all of them; not a string, not an "
            f"empty list. Received: devices={devices!r}"
        )
    there = [device.name for device in tf.config.list_logical_devices()]
    names: list[str] = []
    for device in devices:
        name = _short_name(device)
        if name is None or name not in there:
            raise ValueError(
                f"There is no device {device!r} here. This process has {there}. Received: devices={list(devices)}"
            )
        if name in names:
            raise ValueError(f"Device {device!r} is named twice; name each once. Received: devices={list(devices)}")
        names.append(name)
    return names


def _short_name(device: str) -> str | None:
    """Returns ``/device:GPU:0`` for any way to write it, or None if it is no device of this process."""
    path = device if device.startswith("/") else f"/{device}"
    try:
        spec = tf.DeviceSpec.from_string(path if ":" in path else f"{path}:0")
    except ValueError:
        return None
    remote = spec.task not in (None, 0) or spec.job not in (None, "localhost")
    return None if remote else f"/device:{spec.device_type}:{spec.device_index or 0}"
