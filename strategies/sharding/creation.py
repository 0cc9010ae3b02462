"""Creates sharded weights: each is initialized whole, once, on the host, then partitioned; devices get only shards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import CheckpointInitialValue
from strategies.planning import is_shardable
from strategies.replica.deferred import DeferredVariable, RangeDraw, RemoteVariable, is_remote
from strategies.replica.owners import first_owner, set_coordinates, set_owner
from strategies.replica.parts import ReplicaParts
from strategies.replica.row_exchange import makes_sharded_rows
from strategies.replica.weight_slices import range_shape
from strategies.sharding.all_gather import AllGather
from strategies.sharding.gathers import WeightGathers
from strategies.sharding.units import Units
from strategies.sharding.variables import ShardedVariable, bounds, own_range, row_bounds
from strategies.steps.layout import ReplicaLayout
from strategies.steps.optimizer_state import OptimizerState
from strategies.steps.placed_variables import current_owner, form_of
from strategies.steps.step import Steps
from strategies.steps.variables import ReplicaStateVariable
from strategies.topology.sharding import ShardingGroups


class ShardedWeights:
    """Creates the weights of a strategy sharded over the data axis.

    Args:
        layout: the replicas.
        steps: the steps of these replicas.
        groups: the groups of replicas over which weights are sharded.
        parts: the parts of a replica.
        optimizer_state: the variables that optimizers are creating.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        steps: Steps,
        groups: ShardingGroups,
        parts: ReplicaParts,
        optimizer_state: OptimizerState,
    ) -> None:
        self._layout = layout
        self._groups = groups
        self._parts = parts
        self._optimizer_state = optimizer_state
        self._processes = parts.groups.sharding
        #: Gathers the weights.
        self.gathers = WeightGathers(steps, AllGather(layout, steps, groups, self._processes))
        #: The units in which weights are gathered.
        self.units = Units(layout.process_group.bucket_bytes)

    def should_shard(self, kwargs: dict[str, Any]) -> bool:
        """Returns True if the arguments create a variable to be sharded: a trainable weight, or a quantized one."""
        if self._optimizer_state.builders:
            return False
        if not self._groups.shards_weights and not makes_sharded_rows(self._groups):
            return False
        if kwargs.get("dtype") is None or kwargs.get("colocate_with") is not None:
            return False
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return False
        is_trainable = kwargs.get("trainable") is not False
        rank = 0 if is_trainable else form_of(kwargs)["shape"].rank or 0
        return is_shardable(tf.as_dtype(kwargs["dtype"]).name, rank, is_trainable=is_trainable)

    def create(
        self, strategy: Any, next_creator: Callable[..., Any], initial_value: Any, kwargs: dict[str, Any]
    ) -> ShardedVariable:
        """Creates a sharded weight. All processes call it.

        Args:
            strategy: the strategy under which it is created.
            next_creator: TensorFlow's variable creator.
            initial_value: the initial value of the whole weight, or a callable that returns it.
            kwargs: the creator's arguments.
        """
        name, dtype = kwargs.get("name") or "Variable", tf.as_dtype(kwargs["dtype"])
        own_rows = makes_sharded_rows(self._groups)
        if self._parts.spans_processes and (self._parts.local_part() is None or callable(kwargs["initial_value"])):
            shape = form_of(kwargs)["shape"]
            ranges = self._ranges(shape)
            owners = [self._owner_of(0)]
            components = [self._without_value(kwargs, shape, *ranges[owners[0]])]
        else:
            whole = _drawn(initial_value, dtype)
            shape, components, owners = whole.shape, [], []
            ranges = self._ranges(shape)
            for replica, device in enumerate(self._devices):
                owner = self._owner_of(replica)
                with tf.init_scope(), tf.device("CPU:0"):
                    part = own_range(whole, *ranges[owner], range_shape(tuple(shape), *ranges[owner]))
                own = kwargs | {"initial_value": part, "name": f"{name}/replica_{replica}" if replica else name}
                # Since Keras 3.16 it is given, and that of the whole weight.
                own["shape"] = part.shape
                with tf.device(device):
                    components.append(next_creator(**own))
                owners.append(owner)
            del whole
        aggregation, shards = components[0].aggregation, []
        for owner, (begin, end) in enumerate(ranges):
            if begin < end:
                local = [each for each, its in zip(components, owners, strict=True) if its == owner]
                form = {"shape": range_shape(tuple(shape), begin, end), "dtype": dtype, "name": name}
                form |= {"aggregation": aggregation, "trainable": kwargs.get("trainable") is not False}
                shards.append(self._shard(strategy, local, owner, form))
        # Created after its shards: TensorFlow maps a component to the variable that was created over it last.
        made = ShardedVariable(
            strategy, components, aggregation, shape, owners, ranges, self.gathers, has_own_rows=own_rows
        )
        made.keep(shards)
        if self._parts.spans_processes:
            set_coordinates(made, self._parts)
        if not is_remote(made):
            self.units.add(made)
        return made

    def _without_value(self, kwargs: dict[str, Any], shape: tf.TensorShape, begin: int, end: int) -> Any:
        """Returns a shard that is initialized when it is needed, or a placeholder if this process does not hold it."""
        own_shape = range_shape(tuple(shape), begin, end)
        form = form_of(kwargs) | {"shape": tf.TensorShape(own_shape)}
        if self._parts.local_part() is None:
            with tf.device("CPU:0"):
                return RemoteVariable(current_owner(self._parts), **form)
        whole = functools.partial(_drawn, kwargs["initial_value"], form["dtype"])
        with tf.device(self._devices[0]):
            return DeferredVariable(RangeDraw(whole, lambda value: own_range(value, begin, end, own_shape)), **form)

    def _ranges(self, shape: tf.TensorShape) -> list[tuple[int, int]]:
        if makes_sharded_rows(self._groups):
            return row_bounds(shape.as_list(), self._groups.size)
        return bounds(shape.num_elements(), self._groups.size)

    @property
    def _devices(self) -> tuple[str, ...]:
        """The devices, one per local replica, on which a new weight is created."""
        part = self._parts.local_part()
        return self._layout.devices if part is None else self._parts.part_devices(part)

    def _owner_of(self, replica: int) -> int:
        return (self._layout.first_replica + replica) % self._groups.size

    def _shard(self, strategy: Any, local: list[Any], owner: int, form: dict[str, Any]) -> ReplicaStateVariable:
        """Returns a variable for one shard: over its local components, or a placeholder if another process has it."""
        process, _ = self._groups.owner(owner)
        # The processes of one replica have consecutive ranks.
        process = process * len(self._parts.owners) + first_owner(self._parts, self._parts.coordinates)
        if not local or self._parts.local_part() is None:
            with tf.device("CPU:0"):
                local = [RemoteVariable(process, **form)]
        shard = ReplicaStateVariable(strategy, local, form["aggregation"])
        if self._processes:
            set_owner(shard, process)
        return shard


def _drawn(initial_value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns the initial value of a whole weight, on the host."""
    with tf.init_scope(), tf.device("CPU:0"):
        value = initial_value() if callable(initial_value) else initial_value
        return tf.convert_to_tensor(value.wrapped_value if isinstance(value, CheckpointInitialValue) else value, dtype)
