"""Gathers slices of sparse gradients from all processes; an all-reduce needs a fixed number of them."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.replica.slices import Lookups, side_by_side, summed_by_index

#: The size of a slice of a sparse gradient up to which copying it costs less than one more message.
SHORT_ROW_BYTES = 4096


def slices_across(process_group: ProcessGroup, local: Lookups) -> tf.IndexedSlices:
    """Returns the slices of all processes.

    Args:
        process_group: the group of the processes.
        local: the slices of this process' replicas.
    """
    if process_group.num_processes == 1:
        return local.joined()
    num_shared = len(local.shared)
    own = [side_by_side(local.own)] if local.own else []
    all_slices = []
    for i, slices in enumerate([*local.shared, *own, *local.unique]):
        if i >= num_shared:
            gathered = _gathered(process_group, slices)
            all_slices.append(gathered if i < num_shared + len(own) else summed_by_index(gathered))
            continue
        if slices.values.shape.is_fully_defined():
            total = process_group.sum([slices.values])[0]
        else:
            # An all-reduce needs a static shape.
            gathered_values = process_group.gather(slices.values[tf.newaxis])
            total = tf.reduce_sum(gathered_values, 0)
        all_slices.append(tf.IndexedSlices(total, slices.indices, slices.dense_shape))
    return side_by_side(all_slices)


def _gathered(process_group: ProcessGroup, slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Concatenates the slices of all processes; the indices of short rows are sent with the rows, as bits."""
    values, row_shape = slices.values, slices.values.shape[1:]
    length = row_shape.num_elements()
    if length is None or length * values.dtype.size > SHORT_ROW_BYTES or not values.dtype.is_floating:
        gathered = process_group.gather(values), process_group.gather(slices.indices)
        return tf.IndexedSlices(*gathered, slices.dense_shape)
    # An int64 is one float64, two float32 or four float16.
    num_bits = tf.int64.size // values.dtype.size
    bits = tf.reshape(tf.bitcast(tf.cast(slices.indices, tf.int64), values.dtype), [-1, num_bits])
    rows = process_group.gather(tf.concat([tf.reshape(values, [-1, length]), bits], 1))
    bits = rows[:, length:] if num_bits > 1 else rows[:, length]
    indices = tf.cast(tf.bitcast(bits, tf.int64), slices.indices.dtype)
    return tf.IndexedSlices(tf.reshape(rows[:, :length], [-1, *row_shape]), indices, slices.dense_shape)
