"""Weights whose rows are sharded over replicas, such as experts and tables; each replica computes with its own rows.

The replicas of a group have their own rows of the batch, as along "data", and each owns some of the rows of a weight.
An input for a row of the weight, such as a token for its expert, is sent to the replica that owns the row. That replica
computes, and sends the result back. Each direction is an all-to-all, whose gradient is the other direction.

Within a process the parts are sent as they are. Between processes they are padded (see `row_blocks`).

Source: Lepikhin et al., arXiv:2006.16668; experts in groups of the data axis: Rajbhandari et al., arXiv:2201.05596.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int, regroup
from strategies.batches import shares
from strategies.collectives.process_group import ProcessGroup
from strategies.replica.axis_mappings import like_in_rows
from strategies.replica.creation_context import creating, creation_context
from strategies.replica.deferred import in_shapes_only
from strategies.replica.parts import engine_attribute
from strategies.replica.row_blocks import swapped_between
from strategies.topology.sharding import ShardingGroups

#: Computes with the experts that a replica owns: takes tokens sorted by expert, and the number of tokens of each.
Compute = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

#: For each local replica of a group, its tensors; equally many for each replica.
_ReplicaTensors = Sequence[Sequence[tf.Tensor]]


def sharded_rows(axis: Literal["data", "expert"]) -> contextlib.AbstractContextManager[None]:
    """Context manager: the rows (first dimension) of new weights are sharded over the replicas along an axis.

    Without a :class:`RowExchange` along the axis, the weights are ordinary ones.
    """
    return creating(row_axis=axis)


def makes_sharded_rows(groups: ShardingGroups) -> bool:
    """Returns True inside :func:`sharded_rows` along "data", or along "expert" if these groups are along that axis."""
    axis = creation_context().row_axis
    return axis == "data" or (axis == "expert" and groups.shards_experts)


class RowExchange:
    """The groups of replicas over which rows of weights are sharded, as layers see them.

    Args:
        groups: the groups of replicas; the replicas of each group own all rows together.
        devices: full device names, one for each local replica.
        processes: the processes of a group, with the same number of replicas each; None if a group is in one process.
    """

    def __init__(self, groups: ShardingGroups, devices: Sequence[str], processes: ProcessGroup | None) -> None:
        self._groups = groups
        self._devices = tuple(devices)
        self._processes = processes
        #: The number of replicas in a group.
        self.size = groups.size
        #: True if the groups are those along "expert".
        self.is_expert_axis = groups.shards_experts

    def is_in_replica(self) -> bool:
        """Returns True where a replica computes with its own rows; elsewhere weights are whole."""
        return shares.current() is not None

    def has_rows_of(self, variables: Sequence[Any]) -> bool:
        """Returns True in a replica that owns only some of the rows of each of these Keras variables."""
        values = [tf_variable_of(variable) for variable in variables]
        return self.is_in_replica() and all(getattr(value, "has_own_rows", False) for value in values)

    def own(self, variable: Any) -> tf.Tensor:
        """Returns the rows of a weight that the running replica owns: ``[rows, ...] -> [rows / size, ...]``.

        Args:
            variable: a Keras variable made inside :func:`sharded_rows`.
        """
        return tf.convert_to_tensor(self.part(variable))

    def part(self, variable: Any) -> tf.Variable:
        """Returns the TensorFlow variable with the rows of a weight that the running replica owns."""
        return tf_variable_of(variable).values[get_current_replica_id_as_int() or 0]

    @property
    def position(self) -> int:
        """The position of the running replica in its group; rows are assigned in this order."""
        share = shares.current()
        if share is None:
            raise RuntimeError("No replica is running.")
        if share.constant_of_replica is not None:
            raise shares.NotAlikeError("each has its own rows of a weight")
        return share.replica_id % self.size

    def computed(self, tokens: tf.Tensor, counts: tf.Tensor, compute: Compute) -> tf.Tensor:
        """Returns the experts' outputs for tokens, whichever replicas own the experts. All replicas call it.

        Args:
            tokens: ``[tokens, features]``: this replica's tokens, sorted by expert.
            counts: ``[experts]``, int32: the number of tokens of each expert.
            compute: ``[tokens, features], [experts / size] -> [tokens, new features]``, with the experts that this
                replica owns.

        Returns:
            ``[tokens, new features]``, in the order of ``tokens``.

        Raises:
            ValueError: called in a function that is traced inside a step, where replicas cannot run collectives.
        """
        own_counts = tf.reshape(counts, [self.size, -1])
        if in_shapes_only():
            return compute(tokens, tf.reduce_sum(own_counts, 0))
        route = self.route(own_counts)
        arrived = route.swapped(route.parts(tokens))
        # Tokens arrive by source, then by expert. Sorted by expert, the tokens of each expert are contiguous.
        experts = tf.repeat(tf.tile(tf.range(tf.shape(own_counts)[1]), [self.size]), tf.reshape(route.counts, [-1]))
        order = tf.argsort(experts, stable=True)
        made = compute(permuted(tf.concat(arrived, 0), order), tf.reduce_sum(route.counts, 0))
        back = route.back()
        made = permuted(made, tf.math.invert_permutation(order))
        return like_in_rows(tokens, tf.concat(back.swapped(back.parts(made)), 0))

    def route(self, own_counts: tf.Tensor) -> Route:
        """Returns the numbers of rows that replicas send to each other. All replicas of the group call it.

        Args:
            own_counts: ``[size, kinds]``, int32: the numbers of rows that this replica has for each replica, by kind.

        Raises:
            ValueError: called in a function that is traced inside a step, where replicas cannot run collectives.
        """
        share = shares.current()
        if share is not None and share.in_inner_function:
            raise ValueError(
                "Replicas cannot send rows to each other inside a function that is traced in a step (jit_compile, "
                "recomputed blocks, a pipeline of many passes). Leave out that function, or what shards rows of "
                f"weights: the mesh axis 'expert', or shard. Received: replicas in groups of {self.size}."
            )
        processes = self._processes

        def gathered(own: _ReplicaTensors) -> _ReplicaTensors:
            counts = tf.stack([each for [each] in own])
            every = counts if processes is None else processes.gather(counts, equal_sizes=True)
            return [[every]] * len(own)

        # Counts from each replica of the group to each.
        [counts] = self._merge_call(gathered, [own_counts])
        counts = tf.reshape(counts, [self.size, self.size, -1])
        return Route(self._swap, tf.reduce_sum(counts, 2), counts[:, self.position], self.position)

    def _swap(self, parts: Sequence[tf.Tensor], sizes: tf.Tensor) -> list[tf.Tensor]:
        """Returns the parts from each replica of the group; takes this replica's parts, and the sizes of all."""
        processes = self._processes
        if processes is None:
            return self._merge_call(lambda own: list(map(list, zip(*own, strict=True))), parts)
        # Sizes are the same on all replicas.
        return self._merge_call(
            lambda own: swapped_between(processes, [own for *own, _ in own], own[0][-1]), [*parts, sizes]
        )

    def _merge_call(
        self, function: Callable[[_ReplicaTensors], _ReplicaTensors], own: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Calls a function on the tensors of all local replicas of a group; returns its results for this replica."""
        if len(self._devices) == 1:
            return list(function([own])[0])

        def merged(_: Any, *own: Any) -> list[Any]:
            found = []
            for group in range(self._groups.num_local_groups):
                members = self._groups.replicas(group)
                with tf.device(self._devices[members[0]]):
                    made = function([[each.values[replica] for each in own] for replica in members])
                for replica, its in zip(members, made, strict=True):
                    with tf.device(self._devices[replica]):
                        found.append([tf.identity(each) for each in its])
            return [regroup(values) for values in zip(*found, strict=True)]

        return list(tf.distribute.get_replica_context().merge_call(merged, args=tuple(own)))


class Route:
    """The numbers of rows that the replicas of a group send to each other, as one of them sees them.

    Args:
        swap: takes a tensor for each replica, and the sizes of all; returns the tensors from each.
        sizes: ``[size, size]``: the number of rows from each replica to each.
        counts: the numbers of rows that this replica receives, by source and by expert.
        position: the position of this replica.
    """

    def __init__(
        self,
        swap: Callable[[Sequence[tf.Tensor], tf.Tensor], list[tf.Tensor]],
        sizes: tf.Tensor,
        counts: tf.Tensor,
        position: int,
    ) -> None:
        self._swap = swap
        self._sizes = sizes
        self._position = position
        self.counts = counts

    def parts(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Splits rows, which are sorted by target, into one tensor for each target."""
        return list(tf.split(rows, self._sizes[self._position]))

    def back(self) -> Route:
        """Returns the route in the opposite direction."""
        return Route(self._swap, tf.transpose(self._sizes), self.counts, self._position)

    def swapped(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the parts for this replica, one from each. The gradient goes in the opposite direction."""

        @tf.custom_gradient
        def swap(*own: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
            def gradient(*upstream: Any) -> list[tf.Tensor]:
                return self.back().exchanged([tf.convert_to_tensor(each) for each in upstream])

            return self.exchanged(own), gradient

        return list(swap(*parts))

    def exchanged(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Does the same as :meth:`swapped`, for any dtype and without a gradient."""
        return self._swap(parts, self._sizes)


def permuted(value: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a tensor in another order, each once. Its gradient is a permutation, not IndexedSlices."""

    @tf.custom_gradient
    def permute(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.Tensor]]:
        def gradient(upstream: Any) -> tf.Tensor:
            return tf.gather(upstream, tf.math.invert_permutation(order))

        return tf.gather(rows, order), gradient

    moved: tf.Tensor = permute(value)
    return moved


def row_exchange(axis: Literal["data", "expert"]) -> RowExchange | None:
    """Returns the exchange of rows along an axis of replicas; each replica computes with its own rows of weights.

    Args:
        axis: "expert": None if the current strategy's mesh has no such axis. "data": the replicas that share the
            optimizer, which are those along "expert" if that axis exists; None if each replica has all of it.

    Example, in `build` of a layer of experts, and in its `call` with tokens that are sorted by expert:

        with layer_api.sharded_rows("expert"):
            self.kernel = self.add_weight(shape=(num_experts, inputs, outputs), name="kernel", autocast=False)

        exchange = layer_api.row_exchange("expert")
        if exchange is not None and exchange.is_in_replica():
            own = exchange.own(self.kernel)
            y = exchange.computed(tokens, counts, lambda tokens, counts: products(tokens, counts, own))
    """
    found: RowExchange | None = engine_attribute(tf.distribute.get_strategy(), "row_exchange")
    return found if found is None or axis == "data" or found.is_expert_axis else None


def lie_on_replicas(variables: Iterable[Any]) -> bool:
    """Returns True if rows of some of these Keras variables are sharded over replicas: using them is a collective."""
    return any(getattr(tf_variable_of(each), "has_own_rows", False) for each in variables)


def tf_variable_of(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable, whose ``value`` is read and cast under mixed precision."""
    return getattr(variable, "_value", None)


def num_replicas() -> int:
    """Returns the number of replicas of the strategy in whose scope this is called; 1 outside of any."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)
