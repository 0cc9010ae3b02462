"""Creates gradient accumulators; each replica holds a partial sum."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies.engine.partial_sums import PartialSumVariable


class Accumulators:
    """The optimizers of a strategy that accumulate gradients over several steps."""

    def __init__(self) -> None:
        #: For each optimizer, a flag: True while its accumulators' partial sums differ between processes.
        self._are_spread: weakref.WeakKeyDictionary[Any, tf.Variable] = weakref.WeakKeyDictionary()
        self._optimizer: Any = None
        self._makes_flag = False

    @contextlib.contextmanager
    def creating(self, optimizer: Any) -> Iterator[None]:
        """Context manager: new variables are accumulators of ``optimizer``, with one partial sum per replica."""
        if optimizer not in self._are_spread:
            self._makes_flag = True
            try:
                with tf.init_scope(), tf.device("CPU:0"):
                    self._are_spread[optimizer] = tf.Variable(False, trainable=False, name="sums_are_spread")
            finally:
                self._makes_flag = False
        before, self._optimizer = self._optimizer, optimizer
        try:
            yield
        finally:
            self._optimizer = before

    @property
    def makes_flag(self) -> bool:
        """True while the flag of an optimizer is created: a plain variable of this process only."""
        return self._makes_flag

    @property
    def makes_accumulators(self) -> bool:
        """True inside :meth:`creating`."""
        return self._optimizer is not None

    def create(self, create: Callable[..., Any], kwargs: dict[str, Any]) -> PartialSumVariable:
        """Returns an accumulator over a variable made by ``create``. Call it inside :meth:`creating`."""
        made = create(
            **kwargs
            | {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        )
        return PartialSumVariable(made, self._are_spread[self._optimizer])
