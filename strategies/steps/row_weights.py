"""The row weights of the local replicas, in variables, for functions that serve several steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.shares import Share


class RowWeights:
    """The row weights of the local replicas, one variable for each, for graphs that outlive a step.

    A ``tf.function`` that replicas call is traced once and serves later steps, whose batches may be split differently.
    It reads row weights from variables; every step sets these once one of them has been read.

    Args:
        devices: the devices of the local replicas.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._are_read = False
        self._weights: list[tf.Variable] = []
        for device in devices:
            with tf.device(device):
                self._weights.append(tf.Variable(0.0, trainable=False, name="row_weight"))

    @property
    def resources(self) -> dict[int, list[Any]]:
        """The resources of the variables, by the id of the first one."""
        handles = [variable.handle for variable in self._weights]
        return {id(handles[0]): handles}

    def set(self, step_shares: Sequence[Share]) -> None:
        """Writes the weights of a step to the variables, if any function reads them."""
        if self._are_read:
            self._assign(step_shares)

    def read(self, step_shares: Sequence[Share], replica: int, graph: tf.Graph) -> tf.Tensor:
        """Returns a replica's weight, in a graph that outlives the step, whose own graph is `graph`."""
        if not self._are_read:
            self._are_read = True
            with graph.as_default() if getattr(graph, "building_function", False) else tf.init_scope():
                self._assign(step_shares)
        return self._weights[replica].read_value()

    def _assign(self, step_shares: Sequence[Share]) -> None:
        for variable, share in zip(self._weights, step_shares, strict=True):
            with tf.device(variable.device):
                variable.assign(share.weight)
