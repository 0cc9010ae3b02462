"""Runs one step: each local replica runs with its rows of the batch.

A step has four phases, all in one graph when the caller is a ``tf.function``:

1. the batch is split, and every replica gets the weight of its rows (``batches.shares``);
2. every replica computes its gradients from its rows;
3. the gradients are summed (``gradient_sync``), then every device runs the whole, unchanged Keras optimizer on its own
   components of the variables, as one device would: clipping, loss-scale checks, accumulation, averages and their
   conditionals all see the global gradient, and no collective has to run inside a conditional;
4. state that each replica wrote alone is synchronized (``replica_state``), and the replicas' outputs are combined
   (``outputs``).

In Keras' own step between processes, phase 3 is deferred until metrics are read (``updates``): the metrics' sums, and
those of phase 4, are then fused with the gradients' reduction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    Function,
    PerReplica,
    ReplicaContext,
    call_for_each_replica,
    control_status_ctx,
    gradient_record,
    select_replica,
    tf_convert,
)
from strategies.batches import inputs, shares
from strategies.batches.divided_batch import divide
from strategies.batches.row_marks import marking
from strategies.batches.rows import add_dummy_rows, rows_of
from strategies.replica.attributes import ReplicaAttributes
from strategies.steps.assembled_step import assemble, captured, new_graph
from strategies.steps.components import Components
from strategies.steps.context import StepContext, trainer_call
from strategies.steps.explained import merge_errors_explained
from strategies.steps.first_replica import FirstReplica, shared_for_all
from strategies.steps.graph_import import without_collections
from strategies.steps.layout import ReplicaLayout
from strategies.steps.outputs import combined
from strategies.steps.replica_copies import ReplicaCopies
from strategies.steps.replica_state import ReplicaWrites, agree
from strategies.steps.row_weights import RowWeights
from strategies.steps.waiting import Waits

_logger = logging.getLogger(__name__)


class Steps:
    """Runs the steps of one strategy.

    Args:
        strategy: the strategy of the replicas' context.
        layout: its replicas.
        waits: measures the waiting times of the steps.
    """

    def __init__(self, strategy: tf.distribute.Strategy, layout: ReplicaLayout, waits: Waits) -> None:
        self._strategy = weakref.ref(strategy)
        self._layout = layout
        self._waits = waits
        self._row_weights = RowWeights(layout.devices)
        self._writes = ReplicaWrites()
        #: The variables that each local replica has a component of.
        self.components = Components(layout.num_local)
        self._lifted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        #: True if one replica may be traced for all local ones: none of them communicates by itself.
        self.can_trace_once = False
        #: True if the devices of a replica, or replicas, may share weights.
        self.may_have_shards = False
        #: The state of the running step; replaced in :meth:`_run` and :meth:`reading_totals` only.
        self.context = StepContext()

    @tf.autograph.experimental.do_not_convert
    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the outputs of ``fn``, called by every local replica with its part of the arguments."""
        if not trainer_call().draws_batches or tf.executing_eagerly():
            return self._call(fn, args, kwargs)
        with self._waits.running((args, kwargs)):
            return self._call(fn, args, kwargs)

    def _call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(fn, Function):
            return self._run(fn, args, kwargs, traces_once=trainer_call().traces_once)
        lifted = self._lifted.get(fn)
        if lifted is None:
            lifted = self._lifted[fn] = self._lift(fn, traces_once=True)
        try:
            return lifted(*args, **kwargs)
        except shares.NotAlikeError as reason:
            _logger.debug("%r: each replica is traced, as %s.", fn.name, reason)
        # A new clone: a tf.function may create variables in its first trace only.
        lifted = self._lifted[fn] = self._lift(fn, traces_once=False)
        return lifted(*args, **kwargs)

    def _lift(self, fn: Any, *, traces_once: bool) -> Any:
        """Returns a ``tf.function`` like ``fn`` that runs a step of ``fn``.

        The replicas have to be built inside the function's graph, not the function inside the replicas: two replicas
        cannot synchronize across two graphs. The clone keeps tf.function's arguments.

        Args:
            fn: the ``tf.function``.
            traces_once: if True, the first local replica is traced for all; calls may raise ``NotAlikeError``.
        """
        python_function = fn.python_function

        def replicas_inside(*args: Any, **kwargs: Any) -> Any:
            converted = tf_convert(python_function, control_status_ctx())
            return self._run(converted, args, kwargs, traces_once=traces_once)

        return fn._clone(python_function=replicas_inside)

    def take_written(self, updated: Collection[Any] = ()) -> list[Any]:
        """Returns the variables that each replica wrote alone in the running step; the caller synchronizes them.

        Args:
            updated: references of variables that are not returned: an update still changes them. They are synchronized
                when the step ends.
        """
        written = [variable for variable in self._writes.list_written(self.context) if variable.ref() not in updated]
        references = {variable.ref() for variable in written}
        self.context.agreed.update(references)
        for key in [key for key in self.context.pending if key[1] in references]:
            del self.context.pending[key]
        return written

    def note_write(self, variable: Any, *, by_program: bool = False) -> None:
        """Records that a replica wrote ``variable`` alone in the running step.

        Raises:
            ValueError: if the variable's shape changes and there are other replicas with which to synchronize it.
        """
        if self._layout.num_replicas > 1 and not variable.shape.is_fully_defined():
            raise ValueError(
                "A step writes a variable whose shape changes, such as the state of a metric that keeps all rows: each "
                f"of {self._layout.num_replicas} replicas has other rows, and the mean of their values, which a "
                "strategy would take, is not defined. Keep counts or sums of a fixed shape, as keras.metrics.AUC does "
                "for its thresholds; or compute it after the epoch, from model.predict(x). Received: "
                f"{variable.name!r} of shape {variable.shape}."
            )
        self._writes.note(variable, self.context, by_program=by_program)

    def pending_write(self, variable: Any, replica: int) -> tuple[bool, Any] | None:
        """Returns (True if the program's own code wrote it, graph) for a replica's write that is not synchronized."""
        return self.context.pending.get((replica, variable.ref()))

    def note_agreed(self, variable: Any, replica: int) -> None:
        """Records that a replica has the synchronized value of a variable."""
        self.context.pending.pop((replica, variable.ref()), None)
        self.context.agreed.add(variable.ref())

    @contextlib.contextmanager
    def reading_totals(self, totals: Iterable[tuple[Any, tf.Tensor]]) -> Iterator[None]:
        """Context manager: reading one of the metric variables outside replicas returns its paired total."""
        outer = self.context
        self.context = dataclasses.replace(outer, totals={variable.ref(): total for variable, total in totals})
        try:
            yield
        finally:
            self.context = outer

    @tf.autograph.experimental.do_not_convert
    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, traces_once: bool) -> Any:
        """Runs one step; every step goes through this method.

        Args:
            fn: called by each local replica.
            args: its positional arguments, of all local replicas.
            kwargs: its keyword arguments.
            traces_once: if True, the first local replica is traced for all; the caller handles ``NotAlikeError``.
        """
        is_recorded = gradient_record.could_possibly_record()
        can_trace_once = self._layout.num_local > 1 and self.can_trace_once and not is_recorded
        if not traces_once or not can_trace_once or tf.executing_eagerly():
            return self._run_here(fn, args, kwargs)
        caller = tf.compat.v1.get_default_graph()
        graph = new_graph(caller)
        devices = [group.devices for group in self._layout.groups]
        with without_collections():
            with graph.as_default():
                copies = ReplicaCopies(
                    graph, devices, lambda: {**self.components.resources(), **self._row_weights.resources}
                )
                args, kwargs = captured(graph, (args, kwargs))
                outputs = self._run_here(fn, args, kwargs, copies)
            return assemble(copies, caller, outputs)

    def _run_here(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], copies: ReplicaCopies | None = None
    ) -> Any:
        """Runs one step in the default graph, or eagerly.

        Args:
            fn: called by each local replica.
            args: its positional arguments, of all local replicas.
            kwargs: its keyword arguments.
            copies: if given, the first local replica is traced for all.
        """
        layout = self._layout
        args, local_shares = self._shared_out(args, kwargs)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        outer, self.context = self.context, StepContext(tuple(local_shares), graph=graph)
        try:
            self._row_weights.set(local_shares)
            if any(share.has_rows is not True for share in local_shares):
                with tf.device("CPU:0"):  # batches are on the CPU; without this scope, all would pass through GPU 0
                    args, kwargs = add_dummy_rows((args, kwargs), layout.num_local)
            outputs = self._run_replicas(fn, args, kwargs, copies)
            agree(self._writes.list_written(self.context), local_shares, layout.process_group, copies)
            return combined(outputs, local_shares, layout)
        finally:
            self.context = outer

    def _shared_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], list[shares.Share]]:
        """Returns the arguments, with a plain batch replaced by the replicas' rows, and the shares of the replicas."""
        layout, combination = self._layout, trainer_call().combination
        rows = rows_of((args, kwargs), layout.num_local)
        if rows is None and combination is not None and layout.num_replicas > 1:
            # train_on_batch and the other *_on_batch methods pass the plain batch.
            args = self._share_out(args)
            rows = rows_of(args, layout.num_local)
        if rows is not None and rows.total is None:
            rows = rows.with_total(layout.process_group.sum([rows.local_total()])[0])
        divided = divide(
            rows,
            layout.first_replica,
            layout.num_local,
            layout.num_replicas,
            combination,
            self._read_weight,
            may_have_shards=self.may_have_shards,
        )
        return args, divided

    def _share_out(self, batch: Any) -> Any:
        layout = self._layout
        if layout.num_processes == 1:
            return inputs.share_out(batch, layout.num_local)
        return inputs.portion_out(batch, layout.first_replica, layout.num_local, layout.num_replicas)

    def _read_weight(self, replica: int, graph: tf.Graph) -> tf.Tensor:
        return self._row_weights.read(self.context.shares, replica, graph)

    def _run_replicas(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], copies: ReplicaCopies | None
    ) -> Any:
        strategy: Any = self._strategy()
        local_shares = self.context.shares

        def replica(share: shares.Share, args: Any, kwargs: Any) -> Any:
            shares.attach(share)
            if share.num_replicas == 1 and not share.dependence.may_have_shards:
                return tf.nest.map_structure(_as_tensor, fn(*args, **kwargs))
            with marking((args, kwargs), share.dependence.sizes):
                return tf.nest.map_structure(_as_tensor, fn(*args, **kwargs))

        if copies is not None:
            arguments = [select_replica(r, (args, kwargs)) for r in range(self._layout.num_local)]
            try:
                share = shared_for_all(local_shares, arguments, copies)
            except shares.NotAlikeError:
                # This batch is divided unevenly, in a graph for its static size.
                pass
            else:
                return self._run_first_replica(copies, functools.partial(replica, share, *arguments[0]))

        def replica_of_several(share: shares.Share, attributes: ReplicaAttributes, args: Any, kwargs: Any) -> Any:
            with attributes.running():
                return replica(share, args, kwargs)

        if self._layout.num_local > 1:
            own = [ReplicaAttributes() for _ in local_shares]
            states = PerReplica(local_shares), PerReplica(tuple(own))
            with merge_errors_explained():
                outputs = call_for_each_replica(strategy, replica_of_several, (*states, args, kwargs))
            own[0].put_back()
            return outputs
        # A single local replica needs no thread of its own: no other one in this process waits for it.
        with tf.device(self._layout.devices[0]), ReplicaContext(strategy, self._layout.first_replica):
            return replica(local_shares[0], *select_replica(0, (args, kwargs)))

    def _run_first_replica(self, copies: ReplicaCopies, replica: Callable[[], Any]) -> Any:
        """Traces the first local replica for all, and returns the outputs of all.

        Args:
            copies: has the values of the others.
            replica: calls the first replica with its share and its arguments.

        Raises:
            NotAlikeError: the replicas' programs differ, or may differ.
        """
        layout, outer = self._layout, self.context
        self.context = dataclasses.replace(outer, copies=copies)
        attributes = ReplicaAttributes()
        context = FirstReplica(self._strategy(), layout.first_replica, copies, self._copy_pending_writes)
        try:
            with merge_errors_explained(), tf.device(layout.devices[0]), context, attributes.running():
                copies.begin()
                outputs = replica()
            copies.end()
            self._copy_pending_writes()
        finally:
            self.context = outer
        attributes.put_back()
        return copies.for_all_replicas(outputs)

    def _copy_pending_writes(self) -> None:
        """Records for the replicas that are not traced the writes of the one that is."""
        pending, first = self.context.pending, self._layout.first_replica
        own = {reference: written for (replica, reference), written in pending.items() if replica == first}
        for r in range(1, self._layout.num_local):
            for key in [key for key in pending if key[0] == first + r]:
                del pending[key]
            pending.update({(first + r, reference): written for reference, written in own.items()})


def _as_tensor(value: Any) -> Any:
    """Converts objects with ``__tf_tensor__``, such as pieces of split layers and Keras' variables; others are kept."""
    is_converted = hasattr(value, "__tf_tensor__") and not isinstance(value, tf.Tensor)
    return tf.convert_to_tensor(value) if is_converted else value
