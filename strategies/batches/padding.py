"""Pads batches to the size of the largest one so far, for functions that are compiled once per size."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica


class Source:
    """A placeholder for the source of batches that come from no iterator."""


class Padding:
    """The number of rows to which a replica's batch is padded: the largest so far in batches of the same iterator.

    Batches are inspected when they are drawn. A step gets the number as an argument of its call: with a variable on the
    host, a GPU's whole step would be ordered with respect to the operations that read and write it.

    Attributes:
        prediction: the source of the batches of the last prediction, which come one by one.
    """

    def __init__(self) -> None:
        self.prediction = Source()
        self._largest: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._rows = 0
        self._value: tf.Tensor | None = None

    def note(self, element: Any, source: Any) -> None:
        """Records the batch of the step that is called next.

        Args:
            element: the batch.
            source: the iterator that it comes from, or a :class:`Source`. None if it is not to be padded.
        """
        rows = 0
        if source is not None:
            rows = self._largest[source] = max(self._largest.get(source, 0), _num_rows(element))
        if self._value is None or rows != self._rows:
            with tf.init_scope(), tf.device("CPU:0"):
                self._rows, self._value = rows, tf.constant(rows)

    def read(self) -> tf.Tensor:
        """Returns the number as an int32 scalar in the graph of a step; each call of the step sets its value.

        It does not work in graphs of branches and loops, which take no such arguments.
        """
        graph = tf.compat.v1.get_default_graph()
        spec = tf.TensorSpec((), tf.int32)
        # Without a device: it is one argument for all replicas.
        with tf.device(None):
            value: tf.Tensor = graph.capture_call_time_value(self._at_call, spec, key=self)
        return value

    def _at_call(self) -> tf.Tensor:
        return tf.constant(0) if self._value is None else self._value


def _num_rows(element: Any) -> int:
    """Returns the largest number of rows of any replica; 0 if no leaf of the element is a batch of dense tensors."""
    for leaf in tf.nest.flatten(element):
        values = leaf.values if isinstance(leaf, PerReplica) else (leaf,)
        if all(isinstance(value, tf.Tensor) and value.shape.rank for value in values):
            return max(int(value.shape[0]) for value in values)
    return 0


def pad(tensors: Sequence[tf.Tensor], rows: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns tensors padded to at least `rows` rows, and the number of rows that they had.

    Added rows are copies of the last one, so that they can be computed like any other.

    Args:
        tensors: at least one; all have the same number of rows, at least one.
        rows: int32 scalar.
    """
    # No device scope: on a GPU, shapes and what is computed from them are in host memory anyway; in the host's scope,
    # the tensors would be there, too.
    own = tf.shape(tensors[0])[0]

    def padded() -> list[tf.Tensor]:
        chosen = tf.minimum(tf.range(rows), own - 1)
        return [tf.gather(each, chosen) for each in tensors]

    def unpadded() -> list[tf.Tensor]:
        return [tf.identity(each) for each in tensors]

    return list(tf.cond(tf.less(own, rows), padded, unpadded)), own
