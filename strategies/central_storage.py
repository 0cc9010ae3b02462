"""CentralStorageStrategy: one process, one copy of the variables on a parameter device, several compute devices."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies import _keras_hooks
from strategies._keras_hooks.checks import KerasStrategy
from strategies.engine.replicated import ReplicatedExtended
from strategies.engine.strategy import next_collective_key_base, warn_of_other_processes
from strategies.replica.parts import ReplicaParts
from strategies.topology.devices import checked_devices, full_name, list_own_devices
from strategies.topology.mesh import DeviceMesh


class CentralStorageStrategy(KerasStrategy, tf.distribute.experimental.CentralStorageStrategy):
    """Synchronous data parallelism with one copy of the weights, on a parameter device, and the numbers of one device.

    Use it for models whose weights and optimizer slots do not fit into a GPU, such as large embedding tables: they stay
    in the host's memory. Each compute device takes an equal run of the rows of every global batch, reads the weights
    from the parameter device, and sends its gradients there. They are summed there, and the optimizer runs once.
    Weights, metrics and logs equal those of plain Keras on one device with the same global batches, to float32
    rounding, whatever the batch size.

    ``keras.layers.Embedding`` and ``keras.ops.take(..., axis=0)`` look up rows on the parameter device: only these rows
    and their gradients are copied between devices. All other weights are copied whole to each compute device in each
    step; if they fit there, ``MirroredStrategy`` is faster.

    Moving statistics, random seeds and metrics, which each replica writes itself, are on each compute device, and are
    equal after every step. XLA compiles for one device: ``jit_compile`` has no effect unless only one is used.

    Args:
        compute_devices: device strings such as ``["GPU:0", "GPU:1"]``. None means all GPUs, or the first logical CPU
            device where there is no GPU.
        parameter_device: the device of the variables, such as ``"CPU:0"``. None means the first logical CPU device; if
            there is only one compute device, that one.

    Example:

        strategy = strategies.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:0")
        with strategy.scope():
            model = keras.Sequential([keras.Input((5,)), keras.layers.Embedding(1000, 4), keras.layers.Flatten()])
            model.compile("adam", "mse")
        model.fit(np.ones((8, 5)), np.ones((8, 20)), batch_size=4)

    Raises:
        ValueError: a device that is named twice or does not exist, no device, more than one parameter device.

    Source: the interface of ``tf.distribute.experimental.CentralStorageStrategy``, TensorFlow 2.21.
    """

    def __init__(self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None) -> None:
        warn_of_other_processes(self)
        found = _default_compute_devices() if compute_devices is None else checked_devices(compute_devices)
        device = _checked_parameter_device(parameter_device)
        if device is None:
            device = found[0] if len(found) == 1 else list_own_devices("CPU")[0]
        self._mesh = DeviceMesh.from_devices(found)
        #: Full name of the device that holds the variables.
        self.parameter_device = full_name(device)
        self._collective_key_base = next_collective_key_base()
        _keras_hooks.install()
        parts = ReplicaParts.from_process(self._mesh, found)
        extended = ReplicatedExtended(self, parts, parameter_device=self.parameter_device)
        tf.distribute.Strategy.__init__(self, extended)


def _default_compute_devices() -> list[str]:
    return list_own_devices("GPU") or list_own_devices("CPU")[:1]


def _checked_parameter_device(device: str | None) -> str | None:
    if device is None:
        return None
    if not isinstance(device, str):
        raise ValueError(
            "All variables are on one device: expected parameter_device to be its name, such as 'CPU:0', or None. "
            f"Received: parameter_device={device!r}."
        )
    try:
        return checked_devices([device])[0]
    except ValueError as error:
        available = [full_name(name).rpartition("device:")[2] for name in list_own_devices()]
        raise ValueError(
            f"This process has no such device; parameter_device is one of {available}, or None. "
            f"Received: parameter_device={device!r}."
        ) from error
