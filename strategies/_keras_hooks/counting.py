"""Counters that Keras advances in the step that finds no batch left.

Up to Keras 3.15, a batch is drawn inside the graph of the step. At the end of a dataset of unknown length, the step
has begun before it finds that no batch is left, and its operations that need no batch have run: the optimizer has
counted a step, which moves the learning rate of a schedule, and random seeds of layers have advanced. Under a strategy,
batches of such datasets are drawn before the step begins, and this module has the same effects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf


class Counters:
    """The variables that count the steps of a model's function, and by how much each advances per step.

    Args:
        model: the model; it has to be built before its first step.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._strides: list[tuple[keras.Variable, np.ndarray]] = []

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Context manager: measures by how much the counters advance in the block, which runs one step."""
        variables = self._variables()
        before = [_read(variable) for variable in variables]
        yield
        # Unsigned seeds may have wrapped around; the difference wraps around with them.
        strides = [_read(variable) - value for variable, value in zip(variables, before, strict=True)]
        self._strides = [pair for pair in zip(variables, strides, strict=True) if pair[1].any()]

    def count(self) -> None:
        """Advances the counters by one step, with no other effect of a step."""
        for variable, stride in self._strides:
            variable.assign(_read(variable) + stride)

    def _variables(self) -> list[keras.Variable]:
        model = self._model
        # A LossScaleOptimizer's inner optimizer counts only steps with finite gradients, and these have a batch.
        optimizers = {id(each): each for each in vars(model).values() if isinstance(each, keras.Optimizer)}
        if isinstance(model.optimizer, keras.Optimizer):
            optimizers[id(model.optimizer)] = model.optimizer
        every = [each for one in optimizers.values() for each in (one, *getattr(one, "optimizers", ()))]
        every = [each for each in every if _counts_without_batch(each)]
        others = {id(v) for v in [*model.weights, *model.metrics_variables]}
        seeds = [v for v in model.variables if id(v) not in others and not v.dtype.startswith("float")]
        return [*(optimizer._iterations for optimizer in every), *seeds]


def _counts_without_batch(optimizer: keras.Optimizer) -> bool:
    """Returns True if the optimizer counts the step without waiting for an operation that needs a batch.

    With gradient accumulation, an update that reads the count does so inside a conditional that needs the gradients,
    and the step is counted after it.
    """
    if not optimizer.gradient_accumulation_steps:
        return True
    reads = "iterations" in optimizer.__class__.update_step.__code__.co_names
    return not (reads or isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule))


def _read(variable: keras.Variable) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(variable.value).numpy())
