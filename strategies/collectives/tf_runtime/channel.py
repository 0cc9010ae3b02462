"""A channel over TensorFlow's collective runtime: each message is a broadcast in a group of two."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.tf_runtime import members, wire
from strategies.collectives.transport import Channel

#: The device of the local end, the group as this end sees it, and the number of its first op.
Link = tuple[str, wire.CollectiveGroup, int]


class RuntimeChannel(Channel):
    """A channel whose messages are broadcasts in a group of two."""

    def __init__(self, sends: Sequence[Link], receives: Sequence[Link], num_messages: int) -> None:
        self._sends, self._receives = sends, receives
        self._num_messages = num_messages
        self._send_tags: set[int] = set()
        self._recv_tags: set[int] = set()

    def send(self, values: Sequence[tf.Tensor], tag: int = 0) -> list[tf.Tensor]:
        """Sends each value by one broadcast."""
        tensors = checks.check_values(values, len(self._sends), arithmetic=False)
        checks.check_tag(tag, self._num_messages, self._send_tags, "a send")
        sent = []
        for value, (device, group, ordinal) in zip(tensors, self._sends, strict=True):
            with tf.device(device):
                sent.append(wire.send(wire.flatten(value), group, ordinal + tag))
        return sent

    def recv(self, shapes: Sequence[Sequence[int] | tf.Tensor], dtype: tf.DType, tag: int = 0) -> list[tf.Tensor]:
        """Receives each value from one broadcast."""
        checks.check_shape_count(len(shapes), len(self._receives))
        checks.check_tag(tag, self._num_messages, self._recv_tags, "a receive")
        received = []
        for shape, (device, group, ordinal) in zip(shapes, self._receives, strict=True):
            with tf.device(device):
                wanted = shape if isinstance(shape, tf.Tensor) else list(shape)
                received.append(members.receive(wanted, dtype, group, ordinal + tag))
        return received
