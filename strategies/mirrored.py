"""MirroredStrategy: one process, one replica of the model on each of its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies import _keras_hooks, inputs
from strategies._tf_internals import MirroredExtended
from strategies.engine import DataParallelExtended


class MirroredExtendedWithShares(DataParallelExtended, MirroredExtended):
    """TensorFlow's mirrored engine, run by ours."""

    def __init__(self, container_strategy: Any, devices: Sequence[str], cross_device_ops: Any) -> None:
        self._start_engine()
        super().__init__(container_strategy, devices=devices, cross_device_ops=cross_device_ops)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if options is not None or not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        return inputs.distribute(dataset, self._num_replicas_in_sync)


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """Synchronous data parallelism."""

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        _keras_hooks.install()
        devices = devices or [
            d.name for d in tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        ]
        if cross_device_ops is None and all("CPU" in d for d in devices):
            cross_device_ops = tf.distribute.ReductionToOneDevice()
        extended = MirroredExtendedWithShares(self, devices=devices, cross_device_ops=cross_device_ops)
        tf.distribute.Strategy.__init__(self, extended)
