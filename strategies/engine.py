"""What the data-parallel strategies share, in terms of local devices and one gradient reduction.

A step runs in four movements, all in one graph when the caller is a ``tf.function``:

1. the batch is shared out and every replica learns what its rows weigh (``shares``);
2. every replica computes its gradients from its rows;
3. the gradients are summed, then every device runs the whole, unchanged Keras optimizer on its own components of
   the variables, as one device would (``update_replicas``): clipping, loss-scale checks, accumulation, averages
   and their conditionals all see the global gradient, and no replica has to meet another inside a conditional;
4. state that replicas wrote for themselves is made to agree (``variables.agree``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies import inputs, shares, variables
from strategies._tf_internals import (
    Function,
    PerReplica,
    UpdateContext,
    call_for_each_replica,
    control_status_ctx,
    get_update_replica_id,
    select_replica,
    tf_convert,
)


class DataParallelExtended:
    """Mix-in before a ``StrategyExtended`` class of TensorFlow that has one local device per replica."""

    _combination: shares.Combination
    _weights: list[tf.Variable]
    _weights_are_read: bool
    #: Serves random draws of replicas that name no seed; made at the first of them.
    seed_generator: Any
    _shares: list[shares.Share]
    _written: dict[int, variables.ReplicaStateVariable]
    _written_inside: weakref.WeakValueDictionary[int, variables.ReplicaStateVariable]
    _lifted: weakref.WeakKeyDictionary[Any, Any]
    _partial_sums: bool

    def _start_engine(self) -> None:
        self._combination = None
        self._weights = []
        self._weights_are_read = False
        self.seed_generator = None
        self._shares = []
        self._written = {}
        self._written_inside = weakref.WeakValueDictionary()
        self._lifted = weakref.WeakKeyDictionary()
        self._partial_sums = False

    # ---- running replicas

    @contextlib.contextmanager
    def driven_by_trainer(self, combination: shares.Combination) -> Iterator[None]:
        """Marks what runs inside as a step of Keras' trainer, which combines the outputs so."""
        before, self._combination = self._combination, combination
        try:
            yield
        finally:
            self._combination = before

    def _call_for_each_replica(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(fn, Function):
            return self._run_step(fn, args, kwargs)
        # The replicas have to be built inside the function's graph, not the function inside the replicas: two
        # replicas cannot meet across the borders of two graphs. The clone keeps tf.function's arguments.
        lifted = self._lifted.get(fn)
        if lifted is None:
            python_function = fn.python_function

            def replicas_inside(*args: Any, **kwargs: Any) -> Any:
                return self._run_step(tf_convert(python_function, control_status_ctx()), args, kwargs)

            lifted = self._lifted[fn] = fn._clone(python_function=replicas_inside)
        return lifted(*args, **kwargs)

    @tf.autograph.experimental.do_not_convert
    def _run_step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        strategy: Any = self._container_strategy()  # type: ignore[attr-defined]
        num_replicas = strategy.num_replicas_in_sync
        rows = shares.rows_of((args, kwargs), num_replicas)
        if rows is None and self._combination is not None and num_replicas > 1:
            # train_on_batch and its kin hand over the plain batch.
            args = inputs.share_out(args, num_replicas)
            rows = shares.rows_of(args, num_replicas)
        outer = self._shares, self._written
        self._shares = shares.divide(rows, num_replicas, self._combination, self._read_weight)
        self._written = {}
        if self._weights_are_read:
            self._publish_weights()
        if any(share.has_rows is not True for share in self._shares):
            with tf.device("CPU:0"):  # where batches come from; left alone, they would all pass the first GPU
                args, kwargs = shares.lend_rows((args, kwargs), num_replicas)

        def replica(share: shares.Share, args: Any, kwargs: Any) -> Any:
            shares.attach(share)
            return fn(*args, **kwargs)

        try:
            outputs = call_for_each_replica(strategy, replica, (PerReplica(tuple(self._shares)), args, kwargs))
            written = self._written | self._written_in_older_graphs()
            variables.agree(list(written.values()), self._shares)
            return shares.combinable(outputs, self._shares)
        finally:
            self._shares, self._written = outer

    def note_replica_write(self, variable: variables.ReplicaStateVariable) -> None:
        """Remembers that a replica wrote ``variable`` for itself in the running step."""
        self._written[id(variable)] = variable
        share = shares.current()
        if share is not None and share.in_inner_function:
            self._written_inside[id(variable)] = variable

    def _written_in_older_graphs(self) -> dict[int, variables.ReplicaStateVariable]:
        """Returns what functions that the replicas called, traced in an earlier step, may have written."""
        if tf.executing_eagerly() or not self._written_inside:
            return dict(self._written_inside)
        used = {id(tensor) for tensor, _ in tf.compat.v1.get_default_graph().captures}
        return {key: v for key, v in self._written_inside.items() if id(v.values[0].handle) in used}

    def _make_weights(self) -> None:
        for device in self.worker_devices:  # type: ignore[attr-defined]
            with tf.device(device):
                self._weights.append(tf.Variable(0.0, trainable=False, name="row_weight"))

    def _read_weight(self, replica_id: int, graph: tf.Graph) -> tf.Tensor:
        """Returns the replica's weight for a graph that outlives the step whose own graph is ``graph``.

        From the first time on, every step leaves its weights in variables.
        """
        if not self._weights_are_read:
            self._weights_are_read = True
            with graph.as_default() if getattr(graph, "building_function", False) else tf.init_scope():
                self._publish_weights()
        return self._weights[replica_id].read_value()

    def _publish_weights(self) -> None:
        for variable, share in zip(self._weights, self._shares, strict=True):
            with tf.device(variable.device):
                variable.assign(share.weight)

    @contextlib.contextmanager
    def partial_sums(self) -> Iterator[None]:
        """Makes the variables created inside hold one part of a sum on each replica: read, they are the sum."""
        before, self._partial_sums = self._partial_sums, True
        try:
            yield
        finally:
            self._partial_sums = before

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self._partial_sums:
            kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
            kwargs["aggregation"] = tf.VariableAggregation.SUM
        return variables.aware(super()._create_variable(next_creator, **kwargs))  # type: ignore[misc]

    # ---- reducing and updating

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        # What ReplicaContext.all_reduce comes to, as in BatchNormalization(synchronized=True).
        pairs = list(value_destination_pairs)
        if reduce_op == tf.distribute.ReduceOp.SUM:
            values = self._without_borrowed([value for value, _ in pairs])
            pairs = [(value, destination) for value, (_, destination) in zip(values, pairs, strict=True)]
        return super()._batch_reduce_to(reduce_op, pairs, options)  # type: ignore[misc]

    def update_replicas(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        accumulators: Sequence[Any] | None = None,
        is_due: bool | tf.Tensor = True,
    ) -> Any:
        """Sums ``gradients`` over the replicas and calls ``update`` with the sums once per local replica.

        Call in cross-replica context. Inside ``update`` every variable of the strategy stands for the component
        on that replica's device, and ops are placed there.

        Args:
            gradients: per variable a per-replica tensor or ``IndexedSlices``, a plain one that all replicas share
                and that is the sum already, or None. Local shapes: those of the variables.
            update: takes the gradients, in the same order.
            accumulators: per gradient the variable, made under :meth:`partial_sums`, in which ``update`` gathers
                gradients until they are due. None if it does not.
            is_due: bool scalar, whether this step's gradients complete a sum. If not, replicas do not communicate
                and ``update`` gets the replica's own gradients. If so, it gets the sum over replicas of gradients
                and accumulators, and finds the accumulators empty.

        Returns:
            What ``update`` returned for the first replica.
        """
        if accumulators is None:
            local = self._sum_gradients(self._without_borrowed(gradients))
        else:
            local = self._sum_when_due(list(gradients), accumulators, is_due)
        results = []
        for r, device in enumerate(self.worker_devices):  # type: ignore[attr-defined]
            with tf.device(device), UpdateContext(r), tf.name_scope(f"update_{r}"):
                results.append(update(list(select_replica(r, local))))
        return results[0]

    def _sum_gradients(self, gradients: list[Any]) -> list[Any]:
        reducible = [i for i, g in enumerate(gradients) if isinstance(g, PerReplica)]
        sparse = [i for i in reducible if isinstance(gradients[i].values[0], tf.IndexedSlices)]
        dense = [i for i in reducible if i not in sparse]
        for indices, reduce in ((dense, self._sum_dense), (sparse, self._sum_sparse)):
            if indices:
                sums = reduce([(gradients[i], gradients[i]) for i in indices])
                for i, total in zip(indices, sums, strict=True):
                    gradients[i] = total
        return gradients

    def _sum_dense(self, pairs: list[tuple[Any, Any]]) -> Any:
        options = tf.distribute.experimental.CommunicationOptions()
        return super()._batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs, options)  # type: ignore[misc]

    def _sum_sparse(self, pairs: list[tuple[Any, Any]]) -> Any:
        # As many slices as the batch has rows: collectives, which are bound to one shape, cannot carry them.
        return tf.distribute.ReductionToOneDevice().batch_reduce(tf.distribute.ReduceOp.SUM, pairs)

    def _sum_when_due(self, gradients: list[Any], accumulators: Sequence[Any], is_due: bool | tf.Tensor) -> list[Any]:
        devices: Sequence[str] = self.worker_devices  # type: ignore[attr-defined]
        present = [i for i, g in enumerate(gradients) if isinstance(g, PerReplica)]
        parts = self._without_borrowed([gradients[i] for i in present])

        def own() -> list[list[tf.Tensor]]:
            return [[_dense(part.values[r], device) for part in parts] for r, device in enumerate(devices)]

        def summed() -> list[list[tf.Tensor]]:
            totals = []
            for part, i in zip(parts, present, strict=True):
                components = []
                for value, held, device in zip(part.values, accumulators[i].values, devices, strict=True):
                    with tf.device(device):
                        components.append(held + tf.convert_to_tensor(value))
                        held.assign(tf.zeros_like(held))
                totals.append(PerReplica(tuple(components)))
            reduced = self._sum_gradients(totals)
            return [[select_replica(r, total) for total in reduced] for r in range(len(devices))]

        local = tf.cond(is_due, summed, own)
        for position, i in enumerate(present):
            gradients[i] = PerReplica(tuple(values[position] for values in local))
        return gradients

    def _without_borrowed(self, values: Sequence[Any]) -> list[Any]:
        """Zeroes what replicas without rows would add to sums; the rest passes through uncopied."""
        values = list(values)
        mine = [i for i, v in enumerate(values) if isinstance(v, PerReplica) and len(v.values) == len(self._shares)]
        if not mine or all(share.has_rows is True for share in self._shares):
            return values
        per_replica = []
        for share, device in zip(self._shares, self.worker_devices, strict=True):  # type: ignore[attr-defined]
            local = [values[i].values[share.replica_id] for i in mine]
            # Without a device, the conditional would take all values to the first one.
            with tf.device(device):
                if share.has_rows is False:
                    local = _zeros(local)
                elif share.has_rows is not True:
                    local = tf.cond(share.has_rows, lambda kept=local: kept, lambda kept=local: _zeros(kept))
            per_replica.append(local)
        for i, components in zip(mine, zip(*per_replica, strict=True), strict=True):
            values[i] = PerReplica(components)
        return values

    def _use_merge_call(self) -> bool:
        # While one replica's components are updated there is nobody to merge with: Keras then calls directly.
        return get_update_replica_id() is None and super()._use_merge_call()  # type: ignore[misc]

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        r = get_update_replica_id()
        if r is None:
            return super()._update(var, fn, args, kwargs, group)  # type: ignore[misc]
        return fn(var._get_replica(r), *select_replica(r, args), **select_replica(r, kwargs))


def _dense(value: Any, device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.convert_to_tensor(value)


def _zeros(values: list[Any]) -> list[Any]:
    return [
        tf.IndexedSlices(tf.zeros_like(v.values), v.indices, v.dense_shape)
        if isinstance(v, tf.IndexedSlices)
        else tf.zeros_like(v)
        for v in values
    ]
