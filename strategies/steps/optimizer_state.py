"""The optimizer state that a strategy's optimizers are creating: slots, gradient accumulators, and all other variables.

TensorFlow asks a strategy for a variable without the reason for it. Here the code that has an optimizer create its
variables records the reason for the time being; ``variable_makers`` looks it up.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.weight_slices import WeightSlice
from strategies.steps.partial_sums import PartialSumVariable


class OptimizerState:
    """Tells for which optimizer, slice or accumulator a new variable of a strategy is."""

    def __init__(self) -> None:
        #: The optimizers that are being built, each by the one before it.
        self.builders: list[Any] = []
        #: The slice for which a slot is being created, or None.
        self.slice: WeightSlice | None = None
        #: True while accumulators are created.
        self.makes_accumulators = False
        #: True while the flag of an optimizer is created: a plain variable of this process only.
        self.makes_flag = False
        #: For each optimizer, a flag: True while its accumulators' partial sums differ between processes.
        self._are_spread: weakref.WeakKeyDictionary[Any, tf.Variable] = weakref.WeakKeyDictionary()
        self._flag: tf.Variable | None = None

    @contextlib.contextmanager
    def creating(self, optimizer: Any) -> Iterator[None]:
        """Context manager: new variables are state of ``optimizer``, which is being built."""
        self.builders.append(optimizer)
        try:
            yield
        finally:
            self.builders.pop()

    @contextlib.contextmanager
    def creating_slot(self, each: WeightSlice) -> Iterator[None]:
        """Context manager: a new variable is a slot of the slice, on the device of its owner only."""
        before, self.slice = self.slice, each
        try:
            yield
        finally:
            self.slice = before

    @contextlib.contextmanager
    def creating_accumulators(self, optimizer: Any) -> Iterator[None]:
        """Context manager: new variables are accumulators of ``optimizer``, with one partial sum per replica."""
        if optimizer not in self._are_spread:
            self.makes_flag = True
            try:
                with tf.init_scope(), tf.device("CPU:0"):
                    self._are_spread[optimizer] = tf.Variable(False, trainable=False, name="sums_are_spread")
            finally:
                self.makes_flag = False
        self._flag, self.makes_accumulators = self._are_spread[optimizer], True
        try:
            yield
        finally:
            self._flag, self.makes_accumulators = None, False

    def create_accumulator(self, create: Callable[..., Any], kwargs: dict[str, Any]) -> PartialSumVariable:
        """Returns an accumulator over a variable made by ``create``. Call it inside :meth:`creating_accumulators`."""
        made = create(
            **kwargs
            | {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        )
        return PartialSumVariable(made, self._flag)


class SlicesInTurn(list[Any]):
    """The slices that an optimizer is built with: while it iterates over them, new variables are slots of the current.

    Where an optimizer names the weight of a slot (``add_variable_from_reference``), the slice is known. Not all do:
    Adafactor makes its row and column factors by ``add_variable(shape=...)`` and the dummies of vectors by
    ``Variable(0)``, and users' optimizers do likewise. All make them in a loop over the variables that they are built
    with, and only the loop tells for which slice a variable is.

    Args:
        slices: the slices.
        state: the state that is being created.
    """

    def __init__(self, slices: Sequence[WeightSlice], state: OptimizerState) -> None:
        super().__init__(slices)
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            with self._state.creating_slot(each):
                yield each
