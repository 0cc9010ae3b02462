"""Rows that the replicas of several processes send to each other in one all-to-all between the processes.

A process sends each other process one block: the parts of all its own replicas for all replicas of the other,
concatenated by source, then by target. Blocks are padded to the longest. Rows between replicas of one process are not
sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup


def swapped_between(
    processes: ProcessGroup, parts: Sequence[Sequence[tf.Tensor]], sizes: tf.Tensor
) -> list[list[tf.Tensor]]:
    """Returns, for each local replica, the part from each replica of the group. All processes of the group call it.

    Args:
        processes: the processes of the group, with the same number of replicas each.
        parts: for each local replica, its part ``[rows, ...]`` for each replica of the group.
        sizes: ``[replicas, replicas]``, int32: the number of rows from each to each, the same on all processes.
    """
    num_local, num_processes = len(parts), processes.num_processes
    own = [range(process * num_local, (process + 1) * num_local) for process in range(num_processes)]
    local = own[processes.rank]
    blocks = tf.reduce_sum(tf.reshape(sizes, [num_processes, num_local, num_processes, num_local]), [1, 3])
    between = blocks * (1 - tf.eye(num_processes, dtype=blocks.dtype))
    # At least one row, since not all implementations can send a message without elements.
    longest = tf.maximum(tf.reduce_max(between), 1)
    sent = []
    for process, targets in enumerate(own):
        if targets != local:
            sent += [each[target] for each in parts for target in targets]
        missing = tf.reshape(longest - between[processes.rank, process], [1])
        sent.append(tf.zeros(tf.concat([missing, tf.shape(parts[0][0])[1:]], 0), parts[0][0].dtype))
    arrived = tf.split(processes.all_to_all(tf.concat(sent, 0)), num_processes)
    found: list[list[tf.Tensor]] = [[] for _ in local]
    for sources, block in zip(own, arrived, strict=True):
        if sources == local:
            pieces = [each[target] for each in parts for target in local]
        else:
            rows = tf.reshape(sizes[sources.start : sources.stop, local.start : local.stop], [-1])
            padding = tf.shape(block)[:1] - tf.reduce_sum(rows, keepdims=True)
            pieces = tf.split(block, tf.concat([rows, padding], 0), num=num_local**2 + 1)[:-1]
        for target, its in enumerate(found):
            its += pieces[target::num_local]
    return found
