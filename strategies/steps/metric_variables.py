"""Metric state: each replica has a component, and these are summed or averaged when read outside a replica.

A replica without rows adds nothing. The contract is tested in ``tests/strategies/steps/test_state_writes.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import SyncOnReadVariable, get_update_replica_id
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.steps import metric_writes, state_writes
from strategies.steps.variables import ReadableNumber


def total_of(variable: MetricVariable) -> tf.Tensor | None:
    """Returns the total of ``variable`` over all replicas; None outside of ``Engine.metric_totals``."""
    totals = variable.distribute_strategy.extended.engine.steps.context.totals
    return None if totals is None else totals.get(variable.ref())


class MetricVariable(ReadableNumber, SyncOnReadVariable):
    """A synchronized-on-read variable to which a replica without rows adds nothing."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns ``value``; a replica without rows of its own keeps its component."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: super(MetricVariable, self).read_value())
        return super().assign(term, *args, **kwargs)

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds ``value``; a replica without rows of its own adds 0."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: tf.zeros(self.shape, self.dtype))
        return super().assign_add(term, *args, **kwargs)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts ``value``; a replica without rows of its own subtracts 0."""
        term = self._term(value)
        if term is None:
            term = self._counted(value, lambda: tf.zeros(self.shape, self.dtype))
        return super().assign_sub(term, *args, **kwargs)

    def _term(self, value: Any) -> Any:
        """Returns the replica's term of a program's write in a trainer's step; None if the value itself is the term."""
        if get_update_replica_id() is not None:
            return None
        state_writes.check_shards(self._plain_name, value)
        share = state_writes.step_of_program()
        if share is None:
            return None
        return metric_writes.term(share, self._plain_name, value, self.dtype, self.aggregation)

    def _dense_var_to_tensor(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self._marked(super()._dense_var_to_tensor(*args, **kwargs))

    def read_value(self) -> tf.Tensor:
        """Reads the variable; in a trainer's step, a replica reads its term of a sum."""
        return self._marked(super().read_value())

    def _marked(self, value: tf.Tensor) -> tf.Tensor:
        if self.aggregation == tf.VariableAggregation.SUM and state_writes.step_of_program() is not None:
            return mark(state_writes.mark_read(value), Kind.SUM)
        return value

    def _get_cross_replica(self) -> Any:
        total = total_of(self)
        return super()._get_cross_replica() if total is None else total

    def _counted(self, value: Any, otherwise: Callable[[], tf.Tensor]) -> Any:
        share = shares.current()
        if share is None or share.surely_has_rows:
            return value
        return share.keep(tf.cast(value, self.dtype), otherwise())
