"""Messages between two processes over Horovod."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.horovod.members import Group, from_bits, to_bits
from strategies.collectives.transport import Channel, num_elements, shape_of
from strategies.control_plane.waits import RECEIVE


class HorovodChannel(Channel):
    """A channel whose messages are all-to-alls in a group of two, with an empty input on the target.

    Horovod's broadcast is as fast, but needs a tensor of the message's size on the target.

    Args:
        group: source and target, in this order; None on a process that is neither.
        device: the device of this process' end.
        num_messages: as for `Collectives.channel`.
    """

    def __init__(self, group: Group | None, device: str, num_messages: int) -> None:
        self._group, self._device, self._num_messages = group, device, num_messages
        self._first_ordinal = 0 if group is None else group.take(num_messages)
        self._send_tags: set[int] = set()
        self._recv_tags: set[int] = set()

    def send(self, values: Sequence[tf.Tensor], tag: int = 0) -> list[tf.Tensor]:
        """Implements `Channel.send`."""
        group = self._end(0)
        tensors = checks.check_values(values, int(group is not None), arithmetic=False)
        checks.check_tag(tag, self._num_messages, self._send_tags, "a send")
        return [] if group is None else [self._exchange(group, tf.stop_gradient(tensors[0]), tag)]

    def recv(self, shapes: Sequence[Sequence[int] | tf.Tensor], dtype: tf.DType, tag: int = 0) -> list[tf.Tensor]:
        """Implements `Channel.recv`."""
        group = self._end(1)
        checks.check_shape_count(len(shapes), int(group is not None))
        checks.check_tag(tag, self._num_messages, self._recv_tags, "a receive")
        if group is None:
            return []
        received = self._exchange(group, tf.zeros([0], dtype), tag, RECEIVE)
        with tf.device(self._device):
            return [tf.reshape(received, shapes[0])]

    def _end(self, position: int) -> Group | None:
        return self._group if self._group is not None and self._group.position == position else None

    def _exchange(self, group: Group, value: tf.Tensor, tag: int, kind: str = "send") -> tf.Tensor:
        with tf.device(self._device):
            vector = to_bits(tf.reshape(value, [-1]))
            splits = group.by_rank([0, num_elements(shape_of(vector))])
            return from_bits(group.exchange(vector, splits, self._first_ordinal + tag, kind), value.dtype)
