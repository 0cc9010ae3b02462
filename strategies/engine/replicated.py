"""TensorFlow's mirrored variables and replica threads, run by our engine: over the devices of one process, or of many.

What a strategy is made of once it has chosen its local devices and what joins them to other processes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import CheckpointInitialValue, CollectiveAllReduce, MirroredExtended, regroup
from strategies.batches import inputs, sharding
from strategies.collectives.process_group import ProcessGroup
from strategies.engine.arrivals import Savings
from strategies.engine.reductions import Column
from strategies.engine.seeds import agree_on_seed
from strategies.engine.step import DataParallelExtended
from strategies.engine.waiting import Waits
from strategies.replica.parts import ReplicaParts


@dataclass(frozen=True)
class _Column:
    """Stands, to TensorFlow, for a variable on these devices with which another is to be colocated."""

    _devices: tuple[str, ...]


class ReplicatedExtended(DataParallelExtended, MirroredExtended):
    """One replica of the model on each local device.

    Args:
        container_strategy: the strategy this is part of.
        parts: all devices of each local replica.
        cross_device_ops: sums over the first ones; None for TensorFlow's own choice.
        process_groups: join the other processes, one for each part of a replica; none if there are no other processes.
    """

    _cross_device_ops: Any

    def __init__(
        self,
        container_strategy: Any,
        parts: ReplicaParts,
        cross_device_ops: Any,
        process_groups: Sequence[ProcessGroup] = (),
    ) -> None:
        #: The devices over which a replica is spread.
        self.parts = parts
        columns = [parts.column(part) for part in range(parts.mesh.size)]
        # TensorFlow's constructor asks for numbers that depend on the devices.
        self._devices = columns[0]
        # TensorFlow's own reductions are bound to their devices; those that a caller brings are not.
        self._bound_reductions: dict[tuple[str, ...], Any] | None = {} if cross_device_ops is None else None
        joined: Sequence[ProcessGroup | None] = process_groups or [None] * len(columns)
        self._start_engine([Column(*each) for each in zip(columns, joined, strict=True)])
        super().__init__(container_strategy, devices=columns[0], cross_device_ops=cross_device_ops)
        self._make_weights()
        self.waits = Waits(self._num_replicas_in_sync)
        if self.process_group is not None:
            job = _check_alike(self.process_group, len(columns[0]), len(columns))
            #: Counts the files that this process has saved, or left to rank 0 to save.
            self.savings = Savings(self.process_group.rank, job)
            agree_on_seed(self.process_group)
        _number_once(self._collective_ops)

    # ---- variables

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self.parts.here and kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = _Column(self.parts.column(self.parts.here))
        return super()._create_variable(next_creator, **kwargs)

    def _get_variable_creator_initial_value(self, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        if self.process_group is None or replica_id > 0:
            return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)
        # Through no other device than that on which the variable will be: it may be all that fits there.
        joined = [
            column.process_group for column in self.columns if column.devices[0] == device and column.process_group
        ]
        process_group, initial_value = next(iter(joined), self.process_group), kwargs["initial_value"]

        def from_rank_0() -> tf.Tensor:
            value = initial_value() if callable(initial_value) else initial_value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            return process_group.broadcast(tf.convert_to_tensor(value, dtype=kwargs.get("dtype")))

        return from_rank_0

    # ---- reductions

    @contextlib.contextmanager
    def _reducing(self, devices: tuple[str, ...]) -> Iterator[None]:
        # Only parts of the replicas have a reduction of their own; any other devices are left to TensorFlow's.
        columns = [self.parts.column(part) for part in range(1, self.parts.mesh.size)]
        if self._bound_reductions is None or devices not in columns:
            yield
            return
        if devices not in self._bound_reductions:
            reduction = CollectiveAllReduce(
                devices=devices,
                group_size=len(devices),
                options=self._communication_options,
                collective_keys=self._collective_keys,
            )
            _number_once(reduction)
            self._bound_reductions[devices] = reduction
        of_first_column, self._cross_device_ops = self._cross_device_ops, self._bound_reductions[devices]
        try:
            yield
        finally:
            self._cross_device_ops = of_first_column

    # ---- input

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self.process_group is not None:
            return self._clocked(sharding.distribute(dataset, self.process_group, len(self.worker_devices)))
        if options is not None or not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        return self._clocked(inputs.distribute(dataset, self._num_replicas_in_sync))

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if self.process_group is None:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        dataset = dataset_fn(self._make_input_context())
        return self._clocked(sharding.distribute_own(dataset, self.process_group, len(self.worker_devices)))

    def _clocked(self, dataset: Any) -> Any:
        return dataset.apply(self.waits.clocked) if hasattr(dataset, "apply") else dataset

    def _make_input_context(self) -> tf.distribute.InputContext:
        rank = 0 if self.process_group is None else self.process_group.rank
        return tf.distribute.InputContext(self._num_processes, rank, self._num_replicas_in_sync)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        contexts = [
            tf.distribute.experimental.ValueContext(self.first_replica + r, self._num_replicas_in_sync)
            for r in range(len(self.worker_devices))
        ]
        return regroup(tuple(value_fn(context) for context in contexts), always_wrap=True)

    # ---- who writes

    @property
    def should_checkpoint(self) -> bool:
        """True if this process writes checkpoints: one of them does."""
        return self.process_group is None or self.process_group.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """True if this process writes summaries: one of them does."""
        return self.should_checkpoint


def _number_once(reduction: Any) -> None:
    """Has TensorFlow's collectives numbered when they are traced.

    It numbers them anew at every call of a tf.function, by a placeholder that its loops do not feed:
    steps_per_execution > 1 fails. All shapes here are static, so one number each is enough.
    """
    for launcher in getattr(reduction, "_launchers", ()):
        launcher._use_unique_instance_key = lambda: False


def _check_alike(process_group: ProcessGroup, num_replicas: int, num_parts: int) -> int:
    """Refuses, on all processes, processes with other numbers of devices: they would share batches out differently.

    Returns:
        A number that rank 0 has drawn, by which this job can be told from others.
    """
    mine = tf.constant([[num_replicas, num_parts, secrets.randbelow(2**31)]], tf.int32)
    gathered = process_group.gather(mine).numpy().tolist()
    held = [tuple(each[:2]) for each in gathered]
    if len(set(held)) > 1:
        raise ValueError(
            "All processes must have as many devices. Hide some of them (CUDA_VISIBLE_DEVICES), or start the processes "
            f"otherwise. Received, by rank: {[replicas * parts for replicas, parts in held]} devices."
        )
    return int(gathered[0][2])
