"""Making of weights in shards: each is drawn whole, once, on the host, and cut; devices get their shards only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import CheckpointInitialValue
from strategies.engine.central import is_optimizer_state
from strategies.engine.layout import ReplicaLayout
from strategies.engine.sharded_variables import ShardedVariable, bounds, own_range
from strategies.engine.step import Steps
from strategies.engine.variables import ReplicaStateVariable
from strategies.engine.weight_gathers import WeightGathers
from strategies.replica.deferred import RemoteVariable
from strategies.replica.holders import note_holder
from strategies.replica.parts import ReplicaParts
from strategies.replica.weight_slices import range_shape
from strategies.topology.sharding import ShardingGroups

#: The bytes that are gathered at a time where no message has a size of its own.
_UNIT_BYTES = 4 * 2**20


class ShardedWeights:
    """Makes the weights of a strategy in shards over the data axis.

    Args:
        layout: the replicas.
        steps: theirs.
        groups: the replicas that share the weights.
        parts: of a replica.
    """

    def __init__(self, layout: ReplicaLayout, steps: Steps, groups: ShardingGroups, parts: ReplicaParts) -> None:
        self._layout = layout
        self._groups = groups
        self._parts = parts
        self._processes = parts.groups.sharding
        bucket_bytes = layout.process_group.bucket_bytes if layout.process_group is not None else _UNIT_BYTES
        #: Gathers them.
        self.gathers = WeightGathers(layout, steps, groups, self._processes, bucket_bytes)

    def takes(self, kwargs: dict[str, Any]) -> bool:
        """True if a variable is a weight, by the arguments of its creation: trained, and of floating-point numbers."""
        if is_optimizer_state():
            return False
        if kwargs.get("trainable") is False or kwargs.get("colocate_with") is not None:
            return False
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return False
        dtype = kwargs.get("dtype")
        return dtype is not None and tf.as_dtype(dtype).is_floating

    def create(
        self, strategy: Any, next_creator: Callable[..., Any], initial_value: Any, kwargs: dict[str, Any]
    ) -> ShardedVariable:
        """Makes a weight in shards. All processes call it.

        Args:
            strategy: under which it is made.
            next_creator: TensorFlow's.
            initial_value: of the whole weight, or what returns it.
            kwargs: what the creator takes.
        """
        name, dtype = kwargs.get("name") or "Variable", tf.as_dtype(kwargs["dtype"])
        with tf.init_scope(), tf.device("CPU:0"):
            value = initial_value() if callable(initial_value) else initial_value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            whole = tf.convert_to_tensor(value, dtype)
        del value
        size, num_owners = whole.shape.num_elements(), self._groups.size
        ranges = bounds(size, num_owners)
        components, owners = [], []
        for replica, device in enumerate(self._devices):
            owner = self._owner_of(replica)
            begin, end = ranges[owner]
            shape = range_shape(tuple(whole.shape), begin, end)
            with tf.init_scope(), tf.device("CPU:0"):
                part = own_range(whole, begin, end, shape)
            own = kwargs | {"initial_value": part, "name": f"{name}/replica_{replica}" if replica else name}
            with tf.device(device):
                components.append(next_creator(**own))
            owners.append(owner)
        aggregation, shards = components[0].aggregation, []
        for owner, (begin, end) in enumerate(ranges):
            if begin < end:
                held = [each for each, its in zip(components, owners, strict=True) if its == owner]
                form = {"shape": range_shape(tuple(whole.shape), begin, end), "dtype": dtype, "name": name}
                shards.append(self._shard(strategy, held, owner, form | {"aggregation": aggregation}))
        # Behind its shards: it is the one by which TensorFlow knows the components.
        made = ShardedVariable(strategy, components, aggregation, whole.shape, owners, num_owners, self.gathers)
        made.keep(shards)
        self.gathers.enroll(made)
        return made

    @property
    def _devices(self) -> tuple[str, ...]:
        """Those of the part of each local replica where a weight is that is made now."""
        home = self._parts.home()
        return self._layout.devices if home is None else self._parts.column(home)

    def _owner_of(self, replica: int) -> int:
        return (self._layout.first_replica + replica) % self._groups.size

    def _shard(self, strategy: Any, held: list[Any], owner: int, form: dict[str, Any]) -> ReplicaStateVariable:
        """Returns a variable that is one shard: of components here, or of another process."""
        process, _ = self._groups.owner(owner)
        if not held:
            with tf.device("CPU:0"):
                held = [RemoteVariable(process, trainable=True, **form)]
        shard = ReplicaStateVariable(strategy, held, form["aggregation"])
        if self._processes:
            note_holder(shard, process)
        return shard
