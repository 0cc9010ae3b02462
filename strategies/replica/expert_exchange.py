"""Tokens on their way to the devices of their experts, and back.

On a mesh with the axis "expert" the replicas along it are a group: each has rows of its own, as along "data", and some
of the experts. A layer of experts sends each token to the replica that has its expert, which computes, and sends what
it makes back. Both ways are an all-to-all, whose gradient is the way back.

Within a process the parts are as long as they are. Between processes they are padded to the longest of them.

Source: Lepikhin et al., arXiv:2006.16668; experts in groups of the data axis: Rajbhandari et al., arXiv:2201.05596.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int, regroup
from strategies.batches import shares
from strategies.collectives.process_group import ProcessGroup
from strategies.replica.deferred import in_shapes_only
from strategies.topology.sharding import ShardingGroups

#: Computes with the experts that a replica has: takes tokens sorted by expert, and the number of those of each.
Compute = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_making: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_of_experts", default=False)


@contextlib.contextmanager
def weights_of_experts() -> Iterator[None]:
    """Inside, weights are made whose first dimension is that of experts, of which each replica holds its own."""
    token = _making.set(True)
    try:
        yield
    finally:
        _making.reset(token)


def makes_weights_of_experts() -> bool:
    """True inside of :func:`weights_of_experts`."""
    return _making.get()


class ExpertExchange:
    """The groups of replicas over which experts are dealt out, as layers see them.

    Args:
        groups: of replicas, each of which has all experts.
        devices: full names, one for each local replica.
        processes: joins those of a group, of one replica each; None if a group is inside of one process.
    """

    def __init__(self, groups: ShardingGroups, devices: Sequence[str], processes: ProcessGroup | None) -> None:
        self._groups = groups
        self._devices = tuple(devices)
        self._processes = processes
        #: The number of replicas over which experts are dealt out.
        self.size = groups.size

    def is_in_replica(self) -> bool:
        """True where a replica computes with its own rows and experts; elsewhere all experts are read."""
        return shares.current() is not None

    def own(self, variable: Any) -> tf.Tensor:
        """Returns the experts of a weight that the running replica has: ``[experts, ...] -> [experts / size, ...]``.

        Args:
            variable: of Keras, made inside of :func:`weights_of_experts`.
        """
        return tf.convert_to_tensor(variable.value.values[get_current_replica_id_as_int() or 0])

    def computed(self, tokens: tf.Tensor, counts: tf.Tensor, compute: Compute) -> tf.Tensor:
        """Returns what experts make of tokens, wherever they are. All replicas call it.

        Args:
            tokens: ``[tokens, features]``, of this replica, sorted by expert.
            counts: ``[experts]``, int32: the tokens of each expert.
            compute: ``[tokens, features], [experts / size] -> [tokens, new features]``, with the experts that this
                replica has.

        Returns:
            ``[tokens, new features]``, in the order of ``tokens``.

        Raises:
            ValueError: called in a function that is traced inside of a step, where replicas cannot meet.
        """
        share = shares.current()
        if share is not None and share.in_inner_function:
            raise ValueError(
                "A layer of experts is called in a function that is traced inside of a step (jit_compile, recomputed "
                "blocks, a pipeline of many passes): replicas cannot send tokens to each other there. Leave the axis "
                "'expert' out of the mesh, or the function. Received: experts on a mesh with 'expert' of size "
                f"{self.size}."
            )
        own_counts = tf.reshape(counts, [self.size, -1])
        if in_shapes_only():
            return compute(tokens, tf.reduce_sum(own_counts, 0))
        route = self._route(own_counts)
        there = route.swapped(tf.split(tokens, route.sent))
        # By source, then by expert: in the order of experts each has its tokens side by side.
        experts = tf.repeat(tf.tile(tf.range(tf.shape(own_counts)[1]), [self.size]), tf.reshape(route.counts, [-1]))
        order = tf.argsort(experts, stable=True)
        made = compute(permuted(tf.concat(there, 0), order), tf.reduce_sum(route.counts, 0))
        back = tf.split(permuted(made, tf.math.invert_permutation(order)), route.received)
        return tf.concat(route.back().swapped(back), 0)

    def _route(self, own_counts: tf.Tensor) -> _Route:
        sent = tf.reduce_sum(own_counts, 1)
        if self._processes is None:
            counts = tf.stack(self._meet(tf.unstack(own_counts, self.size)))
            return _Route(self._meet, sent, tf.reduce_sum(counts, 1), counts)
        every = self._processes.gather(own_counts[tf.newaxis], equal_sizes=True)
        longest = tf.reduce_max(tf.reduce_sum(every, 2))
        counts = every[:, self._processes.rank]
        processes = self._processes

        def exchange(parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            padded = [tf.pad(part, [[0, longest - tf.shape(part)[0]], [0, 0]]) for part in parts]
            return tf.split(processes.all_to_all(tf.concat(padded, 0)), len(parts))

        return _Route(exchange, sent, tf.reduce_sum(counts, 1), counts)

    def _meet(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns for each replica of the group what it has for this one."""

        def swap(_: Any, *parts: Any) -> list[Any]:
            found = []
            for group in range(self._groups.num_here):
                members = self._groups.replicas(group)
                for position, replica in enumerate(members):
                    with tf.device(self._devices[replica]):
                        found.append([tf.identity(parts[position].values[source]) for source in members])
            return [regroup(tuple(own[source] for own in found)) for source in range(self.size)]

        return list(tf.distribute.get_replica_context().merge_call(swap, args=tuple(parts)))


class _Route:
    """The numbers of rows that a replica sends to and gets from each of its group.

    Args:
        exchange: takes a tensor for each, perhaps padded, and returns the tensors from each, perhaps with more rows.
        sent: rows to each.
        received: rows from each.
        counts: of those that are received, by source and by expert.
    """

    def __init__(
        self,
        exchange: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
        sent: tf.Tensor,
        received: tf.Tensor,
        counts: tf.Tensor,
    ) -> None:
        self._exchange = exchange
        self.sent = sent
        self.received = received
        self.counts = counts

    def back(self) -> _Route:
        """Returns the way back."""
        return _Route(self._exchange, self.received, self.sent, self.counts)

    def swapped(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the parts for this replica, one from each. Gradient: the way back."""

        @tf.custom_gradient
        def swap(*own: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
            def gradient(*upstream: Any) -> list[tf.Tensor]:
                return self._cut(self._exchange([tf.convert_to_tensor(each) for each in upstream]), self.sent)

            return self._cut(self._exchange(own), self.received), gradient

        return list(swap(*parts))

    def _cut(self, parts: Sequence[tf.Tensor], sizes: tf.Tensor) -> list[tf.Tensor]:
        return [part[:size] for part, size in zip(parts, tf.unstack(sizes, len(parts)), strict=True)]


def permuted(value: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a tensor in another order, each once. Its gradient is a permutation, too, and not slices."""

    @tf.custom_gradient
    def permute(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.Tensor]]:
        def gradient(upstream: Any) -> tf.Tensor:
            return tf.gather(upstream, tf.math.invert_permutation(order))

        return tf.gather(rows, order), gradient

    moved: tf.Tensor = permute(value)
    return moved
