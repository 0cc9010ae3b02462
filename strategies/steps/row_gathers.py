"""Gathers the rows of all replicas on every replica: an all-gather along the data axis; its gradient, a reduce-scatter.

Replica r holds the r-th run of consecutive rows of the global batch, so the rows of all replicas, in the order of
replicas, are those of the global batch in their order. Each replica computes with all rows and has a gradient for all;
the gradient of a replica's own rows is the sum over all replicas' gradients for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.rows import num_rows
from strategies.collectives.descriptions import carrying
from strategies.collectives.fixed_order import sum_in_order
from strategies.replica.deferred import in_shapes_only
from strategies.replica.parts import engine_attribute
from strategies.steps.layout import ReplicaLayout, local_values

_Nest = TypeVar("_Nest")


def gather_rows(x: _Nest) -> _Nest:
    """Returns the rows of all replicas, in the order of the global batch: the tensor that one device would have.

    Use it for computations over the whole batch: a contrastive loss, a queue of keys, statistics of a batch. Call it in
    a layer, a loss, or a step, on every replica and in the same order, and not in a `tf.function`, `tf.cond` or
    `tf.while_loop` inside the step. All replicas get the same tensor. It is differentiable any number of times: the
    gradient of a replica's rows is the sum of all replicas' gradients for these rows.

    Gather two views of a batch one by one: a concatenation of the two would come back as the views of the first
    replica, then those of the second.

    On one device, outside steps, and while Keras infers shapes, `x` is returned unchanged.

    Shapes: `[rows of this replica, ...]` -> `[rows of all replicas, ...]`; replicas may have different numbers of rows,
    or none. Other dimensions are equal on all replicas.

    Args:
        x: a dense tensor of any dtype with rows, or a nest of such tensors and None. Strings can be gathered inside one
            process only.

    Raises:
        ValueError: if `x` has no rows or is not dense, or if the call is in a graph where replicas cannot synchronize.

    Example, a layer that subtracts the mean of the batch:

        class Centered(keras.layers.Layer):
            def call(self, x):
                return x - keras.ops.mean(strategies.gather_rows(x), axis=0)

        model = keras.Sequential([keras.Input((3,)), Centered(), keras.layers.Dense(1)])
    """
    leaves = tf.nest.flatten(x)
    for leaf in leaves:
        _check(leaf)
    share = shares.current()
    if share is None:
        _check_strategy()
        return x
    if share.num_replicas == 1 or in_shapes_only():
        return x
    _check_call(share)
    tensors = {i: tf.convert_to_tensor(leaf) for i, leaf in enumerate(leaves) if leaf is not None}
    own = [_own_rows(tensor, share) for tensor in tensors.values()]
    sizes = [num_rows(tensor) for tensor in own]
    in_processes = _merge_call(_sizes_of_processes, *(tf.convert_to_tensor(size, tf.int32) for size in sizes))
    for i, tensor, size, counts in zip(tensors, own, sizes, in_processes, strict=True):
        gathered = _Exchange(share, size, counts).gathered(tensor)
        leaves[i] = mark(gathered, Kind.SAME)
    packed: _Nest = tf.nest.pack_sequence_as(x, leaves)
    return packed


def global_rows(x: Any = None) -> int | tf.Tensor:
    """Returns the number of rows of the global batch of the running step, over all replicas and processes.

    A sum over a replica's rows, divided by this number, is the replica's part of the mean over the global batch.

    Args:
        x: a tensor that has the batch's rows. In plain Keras, outside a strategy, its number of rows is returned; under
            a strategy it may be left out.

    Returns:
        An int where the size of batches is static, else an int32 scalar.

    Raises:
        ValueError: outside steps, without `x`.

    Example, a replica's part of a mean over rows:

        def part_of_mean(x):
            return tf.reduce_sum(x, axis=0) / tf.cast(strategies.global_rows(x), x.dtype)

        part_of_mean(tf.ones([4, 2]))
    """
    share = shares.current()
    if share is None:
        _check_strategy()
    elif share.num_all is not None and not in_shapes_only():
        if share.num_replicas > 1:
            _check_graph(share, "global_rows")
        number = share.num_all
        return number if isinstance(number, int) else mark(tf.identity(number), Kind.SAME)
    if x is None:
        raise ValueError(
            "strategies.global_rows() counts the rows of a step's batch, and no step with a batch is running. Pass "
            "a tensor that has the batch's rows, as in strategies.global_rows(x). Received: x=None."
        )
    rows = num_rows(x)
    if rows is None:
        raise ValueError(f"strategies.global_rows(x) takes a tensor with rows. Received: {x}")
    if share is not None and share.num_replicas > 1 and not in_shapes_only():
        # The step has no batch of its own: only `x` has rows.
        return mark(num_rows(gather_rows(tf.zeros([rows]))), Kind.SAME)
    return rows


class _Exchange:
    """The all-gather of one tensor's rows, and its gradient, the reduce-scatter.

    Args:
        share: this replica's share.
        size: the number of rows of this replica; int, or int32 scalar.
        in_processes: the number of rows of each process: `[processes]`, int32; a scalar if there is one process.
    """

    def __init__(self, share: shares.Share, size: int | tf.Tensor, in_processes: tf.Tensor) -> None:
        self._share = share
        self._size = size
        self._in_processes = in_processes

    def gathered(self, own: tf.Tensor) -> tf.Tensor:
        """All-gathers `[own rows, ...]` -> `[all rows, ...]`. Gradient: :meth:`scattered`."""
        return self._mapped(_gathered, own, self.scattered)

    def scattered(self, whole: tf.Tensor) -> tf.Tensor:
        """Reduce-scatters `[all rows, ...]` -> `[own rows, ...]`, a sum over replicas. Gradient: :meth:`gathered`."""
        return self._mapped(_scattered, whole, self.gathered)

    def _size_of_all(self, size: int | None) -> int | None:
        """Returns the rows of all replicas together, given this replica's `size`; None if not known at tracing."""
        own, every = next(iter(self._share.num_rows), None), self._share.num_all
        if size is None or own is None or not isinstance(every, int) or not self._share.surely_has_rows or size % own:
            return None
        return size // own * every

    def _mapped(
        self, exchange: Callable[..., Any], value: tf.Tensor, backward: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        _check_graph(self._share, "The gradient of gather_rows")
        # stop_gradient on both sides: TensorFlow searches the input graph of a custom gradient for variables, through
        # all that the other replicas have computed so far.
        size = tf.convert_to_tensor(self._size, tf.int32)
        [made] = _merge_call(exchange, tf.stop_gradient(value), size, self._in_processes)
        # In one process TensorFlow infers the sizes from the tensors; between processes it does not.
        known = _static(self._size) if exchange is _scattered else self._size_of_all(value.shape[0])
        made = tf.ensure_shape(tf.stop_gradient(made), [known, *value.shape[1:]])
        if not (value.dtype.is_floating or value.dtype.is_complex):
            return made

        @tf.custom_gradient
        def mapping(_: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.Tensor]]:
            return tf.identity(made), lambda upstream: backward(tf.convert_to_tensor(upstream))

        mapped: tf.Tensor = mapping(value)
        return mapped


def _own_rows(value: tf.Tensor, share: shares.Share) -> tf.Tensor:
    """Returns the replica's own rows: none, if its only row is a dummy row."""
    if share.has_rows is True:
        return value
    return value[: share.keep(tf.shape(value)[0], 0)]


def _static(size: int | tf.Tensor) -> int | None:
    return size if isinstance(size, int) else None


# ---- all local replicas together


def _merge_call(function: Callable[..., Any], *own: tf.Tensor) -> Sequence[tf.Tensor]:
    """Returns this replica's results of a function of all local replicas' values (a ``merge_call``)."""
    found: Sequence[tf.Tensor] = tf.distribute.get_replica_context().merge_call(function, args=own)
    return found


def _sizes_of_processes(strategy: Any, *sizes: Any) -> list[Any]:
    """Returns for each tensor the number of rows of each process, gathered in one message for all tensors.

    Args:
        strategy: the strategy of the replicas.
        *sizes: for each tensor the number of rows of each local replica.
    """
    layout: ReplicaLayout = strategy.extended.engine.layout
    with tf.device(layout.devices[0]):
        local = tf.stack([tf.add_n(local_values(each)) for each in sizes])
        if layout.num_processes > 1:
            with carrying("numbers of gathered rows"):
                local = layout.process_group.gather(local[None], equal_sizes=True)
        # Not copied to the other devices: it is small, and every use reads it from the host.
        return list(tf.unstack(local, num=len(sizes), axis=-1))


def _gathered(strategy: Any, values: Any, _: Any, in_processes: Any) -> list[Any]:
    """Returns the rows of all replicas, on each local device of the group that has the rows."""
    layout: ReplicaLayout = strategy.extended.engine.layout
    k = layout.group_of(values)
    group, own = layout.groups[k], local_values(values)
    with tf.device(group.devices[0]):
        local = tf.concat(own, 0) if len(own) > 1 else own[0]
        if layout.num_processes > 1:
            if local.dtype == tf.string:
                raise ValueError(
                    "strategies.gather_rows sends no strings to other processes. Gather the numbers that represent "
                    f"them, as a StringLookup layer gives. Received: {local}"
                )
            counts = local_values(in_processes)[0]
            most, n = tf.reduce_max(counts), group.process_group.num_processes
            with carrying("gathered rows"):
                every = group.process_group.gather(_padded(local, most), equal_sizes=True)
            parts = tf.split(every, n)
            local = tf.concat([part[: counts[i]] for i, part in enumerate(parts)], 0)
    return [layout.copied_to(k, local)]


def _scattered(strategy: Any, values: Any, sizes: Any, in_processes: Any) -> list[Any]:
    """Returns each replica's own rows of the sum over all replicas."""
    layout: ReplicaLayout = strategy.extended.engine.layout
    group = layout.groups[layout.group_of(values)]
    with tf.device(group.devices[0]):
        total = sum_in_order(local_values(values))
        if layout.num_processes > 1:
            counts = local_values(in_processes)[0]
            most, n, rank = tf.reduce_max(counts), group.process_group.num_processes, group.process_group.rank
            sent = tf.stack([_padded(part, most) for part in tf.split(total, counts, num=n)])
            shape = tf.shape(sent)[1:]
            with carrying("gradients of gathered rows"):
                own = group.process_group.reduce_scatter(tf.reshape(sent, [-1]))
            restored = tf.reshape(own, shape)[: counts[rank]]
            total = tf.ensure_shape(restored, [None, *total.shape[1:]])
        parts = tf.split(total, tf.stack(local_values(sizes)), num=len(group.devices))
    found = []
    for device, part in zip(group.devices, parts, strict=True):
        with tf.device(device):
            found.append(tf.identity(part))
    return [PerReplica(tuple(found)) if len(found) > 1 else found[0]]


def _padded(rows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the rows, padded with zeros to `number` rows."""
    missing = number - tf.shape(rows)[0]
    return tf.concat([rows, tf.zeros(tf.concat([[missing], tf.shape(rows)[1:]], 0), rows.dtype)], 0)


# ---- refusals


def _check(leaf: Any) -> None:
    if leaf is None:
        return
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise ValueError(
            "strategies.gather_rows gathers dense tensors. Make it dense first, with to_tensor() or tf.sparse.to_dense "
            f"and in one shape on all replicas. Received: a {type(leaf).__name__}."
        )
    if any(base.__name__ == "KerasTensor" for base in type(leaf).__mro__):
        raise ValueError(
            "strategies.gather_rows is called while a step runs. A functional model keeps operations of layers only: "
            f"call it in the `call` of a layer. Received: {leaf}"
        )
    if tf.TensorShape(getattr(leaf, "shape", [])).rank == 0:
        raise ValueError(f"strategies.gather_rows takes tensors with rows, their first dimension. Received: {leaf}")


def _check_strategy() -> None:
    """Refuses replicas of strategies of other packages."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1 or in_shapes_only():
        return
    if not isinstance(engine_attribute(context.strategy, "layout"), ReplicaLayout):
        raise ValueError(
            "strategies.gather_rows and strategies.global_rows work under the strategies of this package. Make the "
            f"model in the scope of strategies.MirroredStrategy, or another one. Received: {context.strategy}"
        )


def _check_call(share: shares.Share) -> None:
    """Refuses calls in functions that serve other steps or do not run on all replicas, and calls for micro-batches."""
    _check_graph(share, "gather_rows")
    if shares.num_microbatches() > 1:
        raise ValueError(
            "strategies.gather_rows is called for a micro-batch of a pipeline, and the rows of the global batch go "
            "through the stages one micro-batch after the other. Give the pipeline num_microbatches=1, or compute it "
            "from the model's outputs in a loss function or a metric. "
            f"Received: {shares.num_microbatches()} micro-batches."
        )


def _check_graph(share: shares.Share, what: str) -> None:
    if share.is_in_step_graph:
        return
    graph = tf.compat.v1.get_default_graph()
    raise ValueError(
        f"{what} is called in a tf.function, a tf.cond or a tf.while_loop inside of the step, where the replicas "
        "cannot synchronize. Call it outside of that, in the step itself, and pass the result in; a tf.function "
        "whose call is the whole step can be passed to strategy.run. Received: a call in "
        f"{getattr(graph, 'name', 'a graph')!r}, from one of {share.num_replicas} replicas."
    )
