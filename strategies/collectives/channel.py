"""One-way messages between two positions of a mesh axis."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf


class Channel(abc.ABC):
    """One-way messages between two positions of an axis; made by `Collectives.channel`."""

    @abc.abstractmethod
    def send(self, values: Sequence[tf.Tensor], tag: int = 0) -> list[tf.Tensor]:
        """Send one value from each local source.

        Args:
            values: one for each coordinate of this process at the source position, ascending; any shape.
            tag: which message, each at most once.

        Returns:
            A tensor for each, ready when the send has ended. **That may be only once the peer has posted its
            receive**: make neither computation nor a receive wait for it, only the end of the step.
        """

    @abc.abstractmethod
    def recv(self, shapes: Sequence[Sequence[int] | tf.Tensor], dtype: tf.DType, tag: int = 0) -> list[tf.Tensor]:
        """Receive what the peers send under `tag`.

        Args:
            shapes: one for each coordinate of this process at the target position, ascending: the shape sent,
                as integers where the sender knows it statically, as an int32 tensor where it does not.
            dtype: the dtype sent.
            tag: which message, each at most once.

        Returns:
            The values, each on its device. No gradient: a schedule receives its gradients as messages too.
        """
