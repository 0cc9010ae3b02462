"""Gradient accumulators, which hold a partial sum on each replica until the sum is due.

Their contract is tested in ``tests/strategies/test_mirrored.py`` and ``tests/strategies/processes/suite_files.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import SyncOnReadVariable, get_update_replica_id
from strategies.steps.metric_variables import MetricVariable, total_of


class PartialSumVariable(MetricVariable):
    """A gradient accumulator: each replica holds a partial sum, and its value is the sum of these.

    Between processes, `is_spread` is true while the partial sums differ. While they are equal (nothing has been
    accumulated since the last update, since :func:`level`, or since a value was assigned), the value is one partial sum
    times the number of replicas, and every process can read and save it alone. While they differ, no process can:
    reading raises an error, and does not wait for processes that may never call it.

    Args:
        variable: a variable with one component per local replica.
        is_spread: bool scalar, shared by all accumulators of the optimizer.
    """

    def __init__(self, variable: SyncOnReadVariable, is_spread: tf.Variable) -> None:
        super().__init__(variable.distribute_strategy, variable.values, variable.aggregation)
        self.is_spread = is_spread

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns ``value``; outside a replica, each replica's component gets an equal part of it."""
        context = tf.distribute.get_replica_context()
        in_replica = context is not None and context.strategy is self.distribute_strategy
        if not in_replica and get_update_replica_id() is None:
            self.is_spread.assign(False)
        return super().assign(value, *args, **kwargs)

    def check_known(self) -> None:
        """Raises a ``ValueError`` if this process cannot compute the sum alone."""
        if self.is_shared and bool(self.is_spread):
            raise ValueError(self._fix())

    @property
    def is_shared(self) -> bool:
        """True if other processes also hold partial sums."""
        return self.distribute_strategy.extended.engine.layout.num_processes > 1

    def _fix(self) -> str:
        return (
            f"{self.name!r} holds a part of the gradients that the processes have gathered since the last update, so "
            "one process cannot read or save their sum. Save after `fit`, at the end of an epoch, or at a step that "
            "completes the gradient_accumulation_steps; or call `strategies.sum_accumulated(optimizer)` on all "
            "processes before."
        )

    def _get_cross_replica(self) -> Any:
        if not self.is_shared or total_of(self) is not None:
            return super()._get_cross_replica()
        if tf.executing_eagerly():
            self.check_known()
            return self._sum_of_like_parts()
        with tf.control_dependencies([tf.debugging.assert_equal(self.is_spread, False, self._fix())]):
            return self._sum_of_like_parts()

    def _sum_of_like_parts(self) -> tf.Tensor:
        num_parts = self.distribute_strategy.num_replicas_in_sync
        return self.values[0].read_value() * tf.cast(num_parts, self.dtype)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        def marked(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            saveable = make(*args, **kwargs)
            restore = saveable.restore

            def restore_like_parts(*args: Any) -> Any:
                with tf.control_dependencies([self.is_spread.assign(False)]):
                    return restore(*args)

            saveable.restore = restore_like_parts
            return saveable

        made = super()._gather_saveables_for_checkpoint()
        return {name: functools.partial(marked, make) for name, make in made.items()}


def level(accumulators: Sequence[PartialSumVariable]) -> None:
    """Sets every replica's partial sums to equal parts of the sums, so that each process can compute the sums alone.

    All processes that hold partial sums call it. Nothing is sent for sums whose parts are already equal.
    """
    spread = [variable for variable in accumulators if bool(variable.is_spread)]
    if not spread:
        return
    with spread[0].distribute_strategy.extended.engine.metric_totals(spread):
        for variable in spread:
            variable.assign(total_of(variable), read_value=False)


def accumulators_of(optimizer: Any) -> list[PartialSumVariable]:
    """Returns the gradient accumulators, shared between processes, of an optimizer and of those that it wraps."""
    if optimizer is None:
        return []
    found = [getattr(variable, "value", None) for variable in optimizer.variables]
    return [each for each in found if isinstance(each, PartialSumVariable) and each.is_shared]


def check_known(accumulators: Sequence[PartialSumVariable]) -> None:
    """Raises a ``ValueError`` if this process cannot compute the sums alone."""
    for variable in accumulators:
        variable.check_known()
