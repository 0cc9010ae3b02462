"""Messages between the processes of a strategy, as its stages and shards send them: in one tf.function."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from model_parallel import clock
from model_parallel.cases import NUM_PARTS, Case


def make_exchange(strategy: Any, case: Case, num_values: int) -> clock.Call:
    """Returns what exchanges `clock.NUM_IN_A_ROW` messages between the two processes of `strategy`.

    Args:
        strategy: whose mesh crosses processes along the axis of `case`.
        case: whose shards sum, or whose stages send there and back.
        num_values: of a message, float32.
    """
    groups = strategy.extended.parts.groups
    collectives, axis = groups.collectives, case.axis
    if collectives is None:
        raise ValueError(f"Expected processes joined along {axis!r}. Received: one process.")
    rank = groups.model[axis].rank
    # Zeros: what is summed over and over must not grow. A variable: what is constant may be computed beforehand.
    own = tf.Variable(tf.zeros([num_values]))

    @tf.function(autograph=False)
    def sum_up() -> tf.Tensor:
        value = own.read_value()
        for _ in range(clock.NUM_IN_A_ROW):
            [value] = collectives.all_reduce([value], axis, differentiable=False)
        return value[-1]

    @tf.function(autograph=False)
    def there_and_back() -> tf.Tensor:
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
                # It waits for its peer, who sends when it has what was sent before.
                [value] = channels[source].recv([[num_values]], tf.float32, tag)
        with tf.control_dependencies(sent):
            return tf.identity(value[-1])

    return sum_up if axis == "tensor" else there_and_back
