"""One process' portion of a global batch: the rows of its replicas, and the number of rows.

A process sees its own rows only. To weight them, it needs the number of rows of the whole batch. The code that splits
the batch knows that number, so the number is kept with the rows, and processes need not exchange it at every step.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica, PerReplicaSpec


class Portion(PerReplica):
    """This process' part of one tensor of a global batch: a value of shape ``(rows_r, ...)`` per local replica.

    A replica without rows holds a dummy row, because a model cannot run on an empty batch; its ``num_own`` is 0.

    Args:
        values: one dense, ragged or sparse tensor per local replica.
        num_own: int32 ``[local replicas]``, the number of each local replica's own rows.
        num_all: int32 scalar, rows of the global batch.
        static_rows: the same numbers, local ones first, where they are known when graphs are built.
        spec: its type, if it came out of a dataset. The shapes of one batch do not make a type: processes with
            different numbers of rows would trace their functions at different steps, and wait for each other forever.
    """

    def __init__(
        self,
        values: tuple[Any, ...],
        num_own: tf.Tensor,
        num_all: tf.Tensor,
        static_rows: tuple[int, ...] | None = None,
        spec: PortionSpec | None = None,
    ) -> None:
        super().__init__(values)
        self._spec = spec
        self.num_own = num_own
        self.num_all = num_all
        self.static_rows = static_rows

    @property
    def _type_spec(self) -> PortionSpec:
        if self._spec is not None:
            return self._spec
        return PortionSpec(*(tf.type_spec_from_value(v) for v in self.values), static_rows=self.static_rows)


class PortionSpec(PerReplicaSpec):
    """The type of a :class:`Portion`, for ``tf.data`` and ``tf.function``."""

    __slots__ = ["_static_rows"]

    value_type = property(lambda self: Portion)

    def __init__(self, *value_specs: Any, static_rows: tuple[int, ...] | None = None) -> None:
        super().__init__(*value_specs)
        self._static_rows = static_rows

    @property
    def value_specs(self) -> tuple[Any, ...]:
        """The type of each local replica's value."""
        return tuple(self._value_specs)

    def _serialize(self) -> tuple[Any, ...]:
        return (*self._value_specs, self._static_rows)

    @classmethod
    def _deserialize(cls, serialization: tuple[Any, ...]) -> PortionSpec:
        *value_specs, static_rows = serialization
        return cls(*value_specs, static_rows=static_rows)

    @property
    def _component_specs(self) -> tuple[Any, ...]:
        rows = (tf.TensorSpec([len(self._value_specs)], tf.int32), tf.TensorSpec([], tf.int32))
        return (*self._value_specs, *rows)

    def _to_components(self, value: Portion) -> tuple[Any, ...]:
        return (*value.values, value.num_own, value.num_all)

    def _from_components(self, components: Any) -> Portion:
        *values, num_own, num_all = components
        return Portion(tuple(values), num_own, num_all, self._static_rows, self)
