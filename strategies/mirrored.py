"""MirroredStrategy: one process, one replica of the model on each of its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from strategies import _keras_hooks
from strategies._keras_hooks.checks import KerasStrategy
from strategies.engine.replicated import ReplicatedExtended
from strategies.engine.strategy import Sharded, next_collective_key_base, sharding_of, warn_of_other_processes
from strategies.replica.parts import ReplicaParts
from strategies.topology.devices import checked_devices, own_devices
from strategies.topology.mesh import DeviceMesh


class MirroredStrategy(KerasStrategy, tf.distribute.MirroredStrategy):
    """Synchronous data parallelism over the devices of one process, with the numbers of one device.

    Each device holds a copy of the variables and takes an equal run of the rows of every global batch. Weights,
    metrics and logs equal those of plain Keras on one device with the same global batches, to float32 rounding,
    whatever the batch size.

    Keras, ``tf.data`` and custom training loops can use it as a ``tf.distribute.MirroredStrategy``: make the model, the
    optimizer and the metrics inside ``strategy.scope()``, and call ``fit`` anywhere.

    Layers that look at the whole batch see their replica's rows, as usual in data parallelism:
    ``BatchNormalization`` normalises by these rows, and its moving statistics are the mean of the replicas' statistics,
    weighted by rows; they are equal on all devices after every step. ``BatchNormalization(synchronized=True)``
    sees the global batch. ``Dropout`` draws a different mask on each replica.

    Args:
        devices: device strings such as ``["GPU:0", "GPU:1"]``. None means all GPUs, or, where there is no GPU, all
            logical CPU devices (one, unless ``tf.config.set_logical_device_configuration`` made more).
        cross_device_ops: a ``tf.distribute.CrossDeviceOps`` that sums gradients. None means NCCL for GPUs and
            plain additions for CPU devices, which share their memory.
        mesh: sizes of named mesh axes, as in ``{"data": 2, "pipe": 2, "tensor": 2}``; one may be -1, to be inferred. A
            replica spans the devices of the axes ``"pipe"``, over which ``keras_ext.PipelineModel`` places its stages,
            and ``"tensor"``, over which layers of ``keras_ext`` split their weights; all other layers are on the first
            device. The axis ``"expert"``, directly after ``"data"``, also holds replicas; MoE layers distribute their
            experts over it. ``num_replicas_in_sync`` is the size of ``"data"`` (1 without it) times that of
            ``"expert"``.
        shard: "optimizer" shards the optimizer's slots and updates over the data axis (ZeRO-1, arXiv:1910.02054): each
            device updates its shard of the weights and all-gathers the new weights. "gradients" (ZeRO-2) is the same:
            with both, no device has the sum of all gradients. "weights" (ZeRO-3) shards the weights as well: a device
            holds its shard of each, and all-gathers whole weights while it computes with them. With None, every device
            holds all slots.
        shard_size: the number of replicas over which state is sharded, a divisor of the data axis; every group of
            `shard_size` replicas holds all shards (arXiv:2205.00119). None means all replicas.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4)

    Raises:
        ValueError: a device that is named twice or does not exist, no device, or a mesh that does not fit the devices
            or ``shard``.

    Source: the interface of ``tf.distribute.MirroredStrategy``, TensorFlow 2.21.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
        shard: Sharded = None,
        shard_size: int | None = None,
    ) -> None:
        warn_of_other_processes(self)
        found = own_devices() if devices is None else checked_devices(devices)
        self._mesh = DeviceMesh.from_devices(found, mesh)
        sharding = sharding_of(shard, shard_size, self._mesh)
        grid = self._mesh.with_experts_as_data()
        self._collective_key_base = next_collective_key_base()
        _keras_hooks.install()
        parts = ReplicaParts.from_process(grid, found)
        extended = ReplicatedExtended(self, parts, cross_device_ops, sharding=sharding)
        tf.distribute.Strategy.__init__(self, extended)
