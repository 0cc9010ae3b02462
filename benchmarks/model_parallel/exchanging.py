"""Messages between the processes of a strategy in one tf.function, sent as its stages and shards send them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from model_parallel import clock
from model_parallel.cases import NUM_PARTS, Case


def make_exchange(strategy: Any, case: Case, num_values: int) -> clock.Call:
    """Returns a function that exchanges `clock.NUM_IN_A_ROW` messages between the two processes of `strategy`.

    Args:
        strategy: a strategy whose mesh crosses processes along the axis of `case`.
        case: its shards sum, or its stages send back and forth.
        num_values: number of float32 values of a message.
    """
    groups = strategy.extended.engine.parts.groups
    collectives, axis = groups.collectives, case.axis
    if collectives is None:
        raise ValueError(f"Expected processes joined along {axis!r}. Received: one process.")
    rank = groups.model[axis].rank
    # Zeros, because repeated sums must not grow. A variable, because constants may be folded.
    own = tf.Variable(tf.zeros([num_values]))

    @tf.function(autograph=False)
    def sum_up() -> tf.Tensor:
        value = own.read_value()
        for _ in range(clock.NUM_IN_A_ROW):
            [value] = collectives.all_reduce([value], axis, differentiable=False)
        return value[-1]

    @tf.function(autograph=False)
    def round_trip() -> tf.Tensor:
        channels = [
            collectives.channel(axis, end, 1 - end, clock.NUM_IN_A_ROW // NUM_PARTS) for end in range(NUM_PARTS)
        ]
        value = own.read_value()
        sent: list[tf.Tensor] = []
        for index in range(clock.NUM_IN_A_ROW):
            source, tag = index % NUM_PARTS, index // NUM_PARTS
            if source == rank:
                sent += channels[source].send([value], tag)
            else:
                # Waits for its peer, which sends when it has received the previous message.
                [value] = channels[source].recv([[num_values]], tf.float32, tag)
        with tf.control_dependencies(sent):
            return tf.identity(value[-1])

    return sum_up if axis == "tensor" else round_trip
