"""Looks up rows of a table sharded over replicas: indices are sent to the rows' owners, which send the rows back.

An index that a replica looks up several times is sent once, and so is its row. Gradients are sent once for each lookup,
since plain Keras' optimizers process each slice of a sparse gradient by itself (see `replica.slices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import gradient_tape
from strategies.replica.axis_mappings import like_in_rows
from strategies.replica.deferred import in_shapes_only
from strategies.replica.row_exchange import Route, RowExchange, tf_variable_of


def sharded_lookup(exchange: RowExchange, variable: Any, indices: tf.Tensor) -> tf.Tensor:
    """Returns rows of a table: ``[n] -> [n, columns]``. All replicas of a group call it, each with its own indices.

    Args:
        exchange: the exchange along "data".
        variable: a Keras variable of shape ``[rows, columns]``, made inside `sharded_rows`.
        indices: int32, row numbers of the whole table.
    """
    distributed = tf_variable_of(variable)
    part = exchange.part(variable)
    columns = int(distributed.shape[1])
    ends = tf.constant([end // columns for _, end in distributed.bounds], tf.int32)
    begin = distributed.bounds[exchange.position][0] // columns

    def sent_to(ids: tf.Tensor) -> tuple[Route, tf.Tensor]:
        """Returns the route of indices to the owners of their rows, and the order in which they are sent."""
        owners = tf.searchsorted(ends, ids, side="right")
        counts = tf.math.bincount(owners, minlength=exchange.size, maxlength=exchange.size)
        return exchange.route(counts[:, tf.newaxis]), tf.argsort(owners, stable=True)

    def asked_for(route: Route, ids: tf.Tensor) -> tf.Tensor:
        """Returns the row numbers, in this replica's part of the table, that all replicas look up."""
        asked = route.exchanged(route.parts(ids[:, tf.newaxis]))
        return tf.concat(asked, 0)[:, 0] - begin

    def rows_of(handle: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        found = tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=distributed.dtype)
        return tf.ensure_shape(found, [None, columns])

    # Takes the variable's handle, not its value: after a sparse update, reading a variable copies it.
    @tf.custom_gradient
    def lookup(handle: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.IndexedSlices]]:
        if in_shapes_only():
            return rows_of(handle, indices), lambda upstream: upstream
        is_valid = tf.reduce_all((indices >= 0) & (indices < ends[-1]))
        what = f"An index is not one of the rows of {variable.path!r}, of shape {tuple(distributed.shape)}. Received:"
        with tf.control_dependencies([tf.debugging.Assert(is_valid, [what, indices], summarize=20)]):
            ids, positions = tf.unique(indices)
        route, order = sent_to(ids)
        rows = rows_of(handle, asked_for(route, tf.gather(ids, order)))
        back = route.back()
        rows = tf.concat(back.exchanged(back.parts(rows)), 0)
        found = tf.gather(tf.gather(rows, tf.math.invert_permutation(order)), positions)

        def gradient(upstream: Any) -> tf.IndexedSlices:
            route, order = sent_to(indices)
            own_rows = asked_for(route, tf.gather(indices, order))
            values = route.exchanged(route.parts(tf.gather(tf.convert_to_tensor(upstream), order)))
            return tf.IndexedSlices(tf.concat(values, 0), own_rows, tf.constant(part.shape.as_list()))

        return found, gradient

    # Reports the access to recording tapes, as a variable's own methods do.
    gradient_tape.variable_accessed(part)
    return like_in_rows(indices, lookup(part.handle))
