"""Loading what one process has on its disk into all of them.

Rank 0 writes files, and its disk may be the only one that has them. It reads alone; what it read is sent to the others.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.texts import broadcast_text
from strategies.engine.explained import explained
from strategies.engine.sharded_variables import shards_of_each
from strategies.engine.variables import MetricVariable, PartialSumVariable, accumulators_of, level
from strategies.replica.fetching import assembled, give_to_all, slices
from strategies.replica.holders import holders_of
from strategies.saving.driving import drive

_alone: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, this process reads files that the others do not."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_alone() -> bool:
    """True if this process reads files that the others do not: it must not wait for them."""
    return _alone.get()


def variables_of(model: Any) -> list[Any]:
    """Returns the variables of a model, and those of its optimizer that are there; of sharded weights the shards."""
    optimizer = getattr(model, "optimizer", None)
    return shards_of_each([*model.variables, *(() if optimizer is None else optimizer.variables)])


def state_of(model: Any) -> list[Any]:
    """Returns the variables of a model and of its optimizer, which is built first if no step has built it yet.

    Restoring a run, or undoing steps, needs the slots before the first step. They are made under the model's strategy:
    elsewhere they would be variables of one device.

    Args:
        model: a Keras model whose own variables are there.
    """
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)
    return variables_of(model)


def load_on_all(strategy: tf.distribute.Strategy, load: Callable[[], str], variables: Sequence[Any]) -> str:
    """Runs ``load`` on rank 0, and gives all processes what it returned and loaded.

    All processes call it, with variables of the same shapes in the same order. In a job of one process, and under
    strategies that are not of this package, it is ``load()``.

    Args:
        strategy: joins the processes.
        load: reads files into variables and returns what else there is to know, as text. It must not need the others.
        variables: the Keras variables that ``load`` may change, those of the optimizer included: :func:`state_of`.

    Returns:
        What ``load`` returned on rank 0.

    Raises:
        ValueError: on ranks other than 0, when ``load`` failed on rank 0, which raises the error itself.
    """
    engine: Any = strategy.extended
    process_group: ProcessGroup | None = getattr(engine, "process_group", None)
    if process_group is None:
        return load()
    with explained(engine.member):
        return _load_and_send(engine, process_group, load, variables)


def _load_and_send(engine: Any, process_group: ProcessGroup, load: Callable[[], str], variables: Sequence[Any]) -> str:
    """Loads on rank 0, and gives to all what was loaded."""
    values = [variable.value for variable in variables]

    def attempt() -> tuple[str, Exception | None]:
        with alone():
            try:
                return load(), None
            except Exception as caught:
                # The others wait for word, whatever it is.
                return f"{type(caught).__name__}: {caught}", caught

    # A variable of which processes hold parts is read whenever it is set, which rank 0 alone could not do.
    with engine.metric_totals([value for value in values if isinstance(value, MetricVariable)]):
        text, error = drive(engine, variables, attempt) or ("", None)
    failed = bool(process_group.broadcast(tf.constant(error is not None)))
    text = broadcast_text(text, process_group)
    if error is not None:
        raise error
    if failed:
        raise ValueError(f"Rank 0 could not load what all processes go on from. {text}")
    for variable, value in zip(variables, values, strict=True):
        if isinstance(value, PartialSumVariable):
            value.is_spread.assign(False)
        if 0 not in (holders_of(variable) or [0]):
            # Its holders have it. What one process takes for an accumulator is a remote variable to others: all of
            # them have to go by what all know.
            continue
        if isinstance(value, MetricVariable):
            # Rank 0 holds its own part of the sum that it has set, and the others' are alike.
            shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
            for part in value.values:
                part.assign(assembled(shape, dtype, slices(process_group, 0, shape, dtype, part.read_value)))
        else:
            give_to_all(variable, process_group)
    return text


def sum_accumulated(optimizer: Any) -> None:
    """Sums over all processes what the optimizer has accumulated, so that rank 0 alone can save it.

    With ``gradient_accumulation_steps`` each process holds its own part of the gradients since the last update. ``fit``
    does this before the callbacks at the end of an epoch; a program calls it, on all processes, where it saves at
    another time, between two updates. Training goes on from the same sums. It changes nothing where none is needed.

    Args:
        optimizer: a Keras optimizer, or None.
    """
    level(accumulators_of(optimizer))
