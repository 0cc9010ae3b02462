"""Weights of experts and tables: each replica of a group holds its own rows and computes with them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int
from strategies.replica.deferred import in_shapes_only, is_remote
from strategies.sharding.variables import ShardedVariable


class RowShardedVariable(ShardedVariable):
    """A weight sharded along its first dimension and never gathered in a step.

    A replica's gradient is that of its own experts, from the rows of its whole group; the other replicas of the group
    contribute no term.
    """

    #: Tells layers that a replica computes with its own rows.
    has_own_rows = True

    @property
    def handle(self) -> Any:
        """The handle of the replica's own shard, for gradients; outside a step that of the whole weight."""
        replica = get_current_replica_id_as_int()
        if replica is None or is_remote(self) or not self._gathers.in_step() or in_shapes_only():
            return super().handle
        return self.values[replica].handle

    def _whole(self) -> tf.Tensor:
        if self._gathers.in_step() and not in_shapes_only():
            raise ValueError(
                f"A replica has some experts, or rows, of {self.name!r} only, and a step reads all of them, as a "
                "regularizer does. Use the weights of experts and of sharded tables in their layers only, without a "
                "regularizer; or leave the axis 'expert' out of the mesh, and use keras.layers.Embedding."
            )
        return super()._whole()


def is_row_sharded(variable: Any) -> bool:
    """Returns True if each replica has some rows of a Keras variable."""
    return isinstance(getattr(variable, "value", None), RowShardedVariable)
