"""The row weights of replicas, for graphs that outlive a step.

A ``tf.function`` that replicas call is traced once and serves later steps, whose batches may be split differently. The
row weights that it uses are read from variables, which every step sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.batches.shares import Share


class RowWeights:
    """One variable for each local replica; steps write the variables only once one of them has been read.

    Args:
        devices: the devices of the local replicas.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._are_read = False
        self._weights: list[tf.Variable] = []
        for device in devices:
            with tf.device(device):
                self._weights.append(tf.Variable(0.0, trainable=False, name="row_weight"))

    def set(self, shares: Sequence[Share]) -> None:
        """Writes the weights of a step to the variables, if any function reads them."""
        if self._are_read:
            self._assign(shares)

    def read(self, shares: Sequence[Share], replica: int, graph: tf.Graph) -> tf.Tensor:
        """Returns a replica's weight, in a graph that outlives the step of `shares`, whose own graph is `graph`."""
        if not self._are_read:
            self._are_read = True
            with graph.as_default() if getattr(graph, "building_function", False) else tf.init_scope():
                self._assign(shares)
        return self._weights[replica].read_value()

    def _assign(self, shares: Sequence[Share]) -> None:
        for variable, share in zip(self._weights, shares, strict=True):
            with tf.device(variable.device):
                variable.assign(share.weight)
