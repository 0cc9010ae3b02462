"""The common engine of the data-parallel strategies: a step of local replicas and one gradient reduction.

A step runs in four movements, all in one graph when the caller is a ``tf.function``:

1. the batch is shared out and every replica learns what its rows weigh (``shares``);
2. every replica computes its gradients from its rows;
3. the gradients are summed, then every device runs the whole, unchanged Keras optimizer on its own components of
   the variables, as one device would (``update_replicas``): clipping, loss-scale checks, accumulation, averages
   and their conditionals all see the global gradient, and no replica has to meet another inside a conditional;
4. state that replicas wrote for themselves is made to agree (``variables.agree``).

Some of the replicas may belong to other processes, with which ``reductions`` meet in a ``ProcessGroup``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    Function,
    PerReplica,
    ReplicaContext,
    UpdateContext,
    call_for_each_replica,
    control_status_ctx,
    get_update_replica_id,
    select_replica,
    tf_convert,
)
from strategies.batches import inputs, shares
from strategies.batches.row_dependence import marking
from strategies.engine import variables
from strategies.engine.arrivals import Savings
from strategies.engine.reductions import Column, ReducingExtended
from strategies.replica import graph_lifetimes
from strategies.replica.attributes import ReplicaAttributes
from strategies.replica.splitting import SplitWeight

_MEAN = tf.distribute.ReduceOp.MEAN


class DataParallelExtended(ReducingExtended):
    """Mix-in before a ``StrategyExtended`` class of TensorFlow that has one local device per replica."""

    _combination: shares.Combination
    _weights: list[tf.Variable]
    _weights_are_read: bool
    #: Serves random draws of replicas that name no seed; made at the first of them.
    seed_generator: Any
    _written: dict[int, variables.ReplicaStateVariable]
    _written_inside: weakref.WeakValueDictionary[int, variables.ReplicaStateVariable]
    _lifted: weakref.WeakKeyDictionary[Any, Any]
    _accumulates_for: Any
    _are_spread: weakref.WeakKeyDictionary[Any, tf.Variable]
    _makes_plain: bool
    _agreed: list[tf.Tensor]
    _draws_beside: bool
    #: Set only if there are other processes.
    savings: Savings

    def _start_engine(self, columns: Sequence[Column]) -> None:
        graph_lifetimes.install(_is_ours)
        self._start_reductions(columns)
        self._combination = None
        self._weights = []
        self._weights_are_read = False
        self.seed_generator = None
        self._written = {}
        self._written_inside = weakref.WeakValueDictionary()
        self._lifted = weakref.WeakKeyDictionary()
        self._accumulates_for = None
        self._are_spread = weakref.WeakKeyDictionary()
        self._makes_plain = False
        self._agreed = []
        self._draws_beside = False

    @property
    def _num_processes(self) -> int:
        return 1 if self.process_group is None else self.process_group.num_processes

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._num_processes * len(self.worker_devices)

    @property
    def first_replica(self) -> int:
        """The index, among all replicas, of this process' first."""
        return 0 if self.process_group is None else self.process_group.rank * len(self.worker_devices)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.first_replica

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.first_replica + replica_id

    @property
    def computes_on_gpus(self) -> bool:
        """True if all local devices are GPUs: then batches are copied to them while earlier ones are computed."""
        return all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in self.worker_devices)

    # ---- running replicas

    @contextlib.contextmanager
    def driven_by_trainer(self, combination: shares.Combination, draws_beside: bool = False) -> Iterator[None]:
        """Marks what runs inside as a step of Keras' trainer, which combines the outputs so.

        `draws_beside`: whether the next batch is drawn while a step runs.
        """
        before = self._combination, self._draws_beside
        self._combination, self._draws_beside = combination, draws_beside
        try:
            yield
        finally:
            self._combination, self._draws_beside = before

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
        if not self._draws_beside or tf.executing_eagerly():
            return self._run_shared_step(fn, args, kwargs)
        with self.waits.running((args, kwargs)):
            return self._run_shared_step(fn, args, kwargs)

    def _run_shared_step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        num_local = len(self.worker_devices)
        rows = shares.rows_of((args, kwargs), num_local)
        if rows is None and self._combination is not None and self._num_replicas_in_sync > 1:
            # train_on_batch and its kin hand over the plain batch.
            args = self._share_out(args)
            rows = shares.rows_of(args, num_local)
        if rows is not None and rows.total is None and self.process_group is not None:
            rows = rows.with_total(self.process_group.sum([rows.local_total()])[0])
        outer = self._shares, self._written, self._agreed
        self._shares = shares.divide(
            rows, self.first_replica, num_local, self._num_replicas_in_sync, self._combination, self._read_weight
        )
        self._written, self._agreed = {}, []
        if self._weights_are_read:
            self._publish_weights()
        if any(share.has_rows is not True for share in self._shares):
            with tf.device("CPU:0"):  # where batches come from; left alone, they would all pass the first GPU
                args, kwargs = shares.lend_rows((args, kwargs), num_local)
        try:
            outputs = self._run_replicas(fn, args, kwargs)
            written = self._written | self._written_in_older_graphs()
            variables.agree(list(written.values()), self._shares, self.process_group)
            return self._combined(shares.combinable(outputs, self._shares, self._agreed))
        finally:
            self._shares, self._written, self._agreed = outer

    def _share_out(self, batch: Any) -> Any:
        num_local = len(self.worker_devices)
        if self.process_group is None:
            return inputs.share_out(batch, num_local)
        return inputs.portion_out(batch, self.first_replica, num_local, self._num_replicas_in_sync)

    def _run_replicas(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        strategy: Any = self._container_strategy()  # type: ignore[attr-defined]

        def replica(share: shares.Share, args: Any, kwargs: Any) -> Any:
            shares.attach(share)
            if share.num_replicas == 1:
                return tf.nest.map_structure(_as_tensor, fn(*args, **kwargs))
            with marking((args, kwargs), share.num_rows):
                outputs = tf.nest.map_structure(_as_tensor, fn(*args, **kwargs))
                return tf.nest.map_structure(self._in_mean_form, outputs) if share.combination == "mean" else outputs

        def replica_of_several(share: shares.Share, attributes: ReplicaAttributes, args: Any, kwargs: Any) -> Any:
            with attributes.running():
                return replica(share, args, kwargs)

        if len(self.worker_devices) > 1:
            own = [ReplicaAttributes() for _ in self._shares]
            states = PerReplica(tuple(self._shares)), PerReplica(tuple(own))
            outputs = call_for_each_replica(strategy, replica_of_several, (*states, args, kwargs))
            own[0].put_back()
            return outputs
        # Alone here, the replica needs no thread of its own to meet others from.
        with tf.device(self.worker_devices[0]), ReplicaContext(strategy, self.first_replica):
            return replica(self._shares[0], *select_replica(0, (args, kwargs)))

    def _in_mean_form(self, value: Any) -> Any:
        """Keras' trainer takes means of what training and test steps return: a sum over rows is to come out as one."""
        share = shares.current()
        if share is None or not _is_scalar(value) or any(value is known for known in self._agreed):
            return value
        return share.as_mean(value)

    def note_agreed(self, values: Any) -> None:
        """Remembers that the tensors in ``values`` are the same on all replicas, in the running step."""
        self._agreed += [leaf for leaf in tf.nest.flatten(values) if isinstance(leaf, tf.Tensor)]

    def _combined(self, outputs: Any) -> Any:
        """Combines with the other processes' what Keras' trainer will combine of this process' replicas only."""
        if self.process_group is None or self._combination is None:
            return outputs
        if self._combination == "concat":
            return tf.nest.map_structure(self._all_rows, outputs)
        flat = tf.nest.flatten(outputs)
        agreed = set(map(id, self._agreed))
        mine = [i for i, leaf in enumerate(flat) if id(leaf) not in agreed and _is_floating(leaf)]
        for i, mean in zip(mine, self._reduce_across(_MEAN, [flat[i] for i in mine]), strict=True):
            flat[i] = mean
        return tf.nest.pack_sequence_as(outputs, flat)

    def _all_rows(self, value: Any) -> Any:
        if self.process_group is None or not all(isinstance(v, tf.Tensor) for v in self._local_values(value)):
            raise ValueError(
                "Across processes, predict gathers dense tensors only. Make the model's outputs dense, for instance "
                f"with to_tensor(). Received: {value}"
            )
        local = [tf.reshape(v, [1]) if v.shape.rank == 0 else v for v in self._local_values(value)]
        return self.process_group.gather(tf.concat(local, 0) if len(local) > 1 else local[0])

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
        for device in self.worker_devices:
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
    def partial_sums(self, optimizer: Any) -> Iterator[None]:
        """Makes the variables created inside the accumulators of ``optimizer``: one part of a sum on each replica."""
        if optimizer not in self._are_spread:
            self._makes_plain = True
            try:
                with tf.init_scope(), tf.device("CPU:0"):
                    self._are_spread[optimizer] = tf.Variable(False, trainable=False, name="sums_are_spread")
            finally:
                self._makes_plain = False
        before, self._accumulates_for = self._accumulates_for, optimizer
        try:
            yield
        finally:
            self._accumulates_for = before

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self._makes_plain:
            return next_creator(**kwargs)
        if self._accumulates_for is None:
            return variables.aware(super()._create_variable(next_creator, **kwargs))  # type: ignore[misc]
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        kwargs["aggregation"] = tf.VariableAggregation.SUM
        made = super()._create_variable(next_creator, **kwargs)  # type: ignore[misc]
        return variables.PartialSumVariable(made, self._are_spread[self._accumulates_for])

    # ---- updating

    def update_replicas(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        accumulators: Sequence[Any] | None = None,
        is_due: bool | tf.Tensor = True,
        variables: Sequence[Any] | None = None,
    ) -> Any:
        """Sums ``gradients`` over the replicas and calls ``update`` with the sums once per local replica.

        Call in cross-replica context. Inside ``update`` every variable of the strategy stands for the component
        on that replica's device, and ops are placed there; those that update a variable of another part of the
        replica, where that part is.

        Args:
            gradients: per variable a per-replica tensor or ``IndexedSlices``, a plain one that all replicas share
                and that is the sum already, or None. Local shapes: those of the variables.
            update: takes the gradients, in the same order.
            accumulators: per gradient the variable, made under :meth:`partial_sums`, in which ``update`` gathers
                gradients until they are due. None if it does not.
            is_due: bool scalar, whether this step's gradients complete a sum. If not, replicas do not communicate
                and ``update`` gets the replica's own gradients. If so, it gets the sum over replicas of gradients
                and accumulators, and finds the accumulators empty.
            variables: per gradient the variable that it is for, on whose devices its sum is wanted. None if all are
                on the replicas' first devices.

        Returns:
            What ``update`` returned for the first replica.
        """
        gradients = self._as_local(gradients)
        if accumulators is not None:
            local = self._sum_when_due(gradients, accumulators, is_due, variables)
        elif self.process_group is not None and len(self.worker_devices) == 1:
            # Gradients leave bucket by bucket; a conditional around all of them would wait for the last.
            has_rows = self._shares[0].has_rows if self._shares else True
            local = self._sum_gradients(gradients, has_rows, variables)
        else:
            local = self._sum_gradients(self._without_borrowed(gradients), destinations=variables)
        results = []
        for r, device in enumerate(self.worker_devices):
            with tf.device(device), UpdateContext(r), tf.name_scope(f"update_{r}"):
                results.append(update(list(select_replica(r, local))))
        return results[0]

    def _sum_when_due(
        self,
        gradients: list[Any],
        accumulators: Sequence[Any],
        is_due: bool | tf.Tensor,
        variables: Sequence[Any] | None,
    ) -> list[Any]:
        num_local = len(self.worker_devices)
        present = [i for i, g in enumerate(gradients) if isinstance(g, PerReplica)]
        parts = self._without_borrowed([gradients[i] for i in present])

        held = [accumulators[i].values for i in present]
        are_spread = {
            id(flag): flag for i in present if (flag := getattr(accumulators[i], "is_spread", None)) is not None
        }

        def note(spread: bool) -> None:
            for flag in are_spread.values() if self.process_group is not None else ():
                flag.assign(spread)

        def own() -> list[list[tf.Tensor]]:
            note(True)
            return [
                [_dense(part.values[r], holder[r].device) for part, holder in zip(parts, held, strict=True)]
                for r in range(num_local)
            ]

        def summed() -> list[list[tf.Tensor]]:
            note(False)
            totals = []
            for part, holders in zip(parts, held, strict=True):
                components = []
                for value, holder in zip(part.values, holders, strict=True):
                    with tf.device(holder.device):
                        components.append(holder + tf.convert_to_tensor(value))
                        holder.assign(tf.zeros_like(holder))
                totals.append(PerReplica(tuple(components)))
            destinations = None if variables is None else [variables[i] for i in present]
            reduced = self._sum_gradients(totals, destinations=destinations)
            return [[select_replica(r, total) for total in reduced] for r in range(num_local)]

        local = tf.cond(is_due, summed, own)
        for position, i in enumerate(present):
            gradients[i] = PerReplica(tuple(values[position] for values in local))
        return gradients

    def _use_merge_call(self) -> bool:
        # While one replica's components are updated there is nobody to merge with: Keras then calls directly.
        return get_update_replica_id() is None and super()._use_merge_call()  # type: ignore[misc]

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        r = get_update_replica_id()
        if isinstance(var, SplitWeight):
            return fn(var, *args, **kwargs) if r is None else fn(var, *select_replica(r, args), **kwargs)
        if r is None:
            return super()._update(var, fn, args, kwargs, group)  # type: ignore[misc]
        component = var._get_replica(r)
        with tf.device(component.device):
            return fn(component, *select_replica(r, args), **select_replica(r, kwargs))


def _is_ours() -> bool:
    """True if the caller is under a strategy of this package."""
    return isinstance(tf.distribute.get_strategy().extended, DataParallelExtended)


def _as_tensor(value: Any) -> Any:
    """Returns ``value``; if it only stands for a tensor, as pieces in several parts of a replica do, that tensor."""
    return tf.convert_to_tensor(value) if hasattr(value, "__tf_tensor__") and not tf.is_tensor(value) else value


def _dense(value: Any, device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.convert_to_tensor(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0


def _is_floating(value: Any) -> bool:
    local = value.values if isinstance(value, PerReplica) else (value,)
    return all(isinstance(v, tf.Tensor) and v.dtype.is_floating for v in local)
