"""Loads files that only one process has on its disk into all processes.

Rank 0 writes files, and its disk may be the only one that has them. It reads alone, and sends what it read to the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.strings import broadcast_text
from strategies.engine.engine import Engine, engine_of_processes
from strategies.replica.fetching import assembled, give_to_all, slices
from strategies.replica.owners import owners_of
from strategies.saving.driving import drive
from strategies.sharding.variables import shards_of_each
from strategies.steps.explained import explained
from strategies.steps.metric_variables import MetricVariable
from strategies.steps.partial_sums import PartialSumVariable, accumulators_of, level


def variables_of(model: Any) -> list[Any]:
    """Returns the variables of a model and of its optimizer; sharded weights are replaced by their shards."""
    optimizer = getattr(model, "optimizer", None)
    return shards_of_each([*model.variables, *(() if optimizer is None else optimizer.variables)])


def state_of(model: Any) -> list[Any]:
    """Returns the variables of a model and of its optimizer, which is built first if no step has built it yet.

    Restoring a run, or undoing steps, needs the slots before the first step. They are made under the model's strategy:
    elsewhere they would be variables of one device.

    Args:
        model: a Keras model whose own variables exist.
    """
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)
    return variables_of(model)


def load_on_all(strategy: tf.distribute.Strategy, load: Callable[[], str], variables: Sequence[Any]) -> str:
    """Runs ``load`` on rank 0, and sends its result and the values that it loaded to all processes.

    All processes call it, with variables of the same shapes in the same order. In a job of one process, and under
    strategies of other packages, it just calls ``load()``.

    Args:
        strategy: the strategy that joins the processes.
        load: reads files into variables, and returns any other information as text. It must not wait for the others.
        variables: the Keras variables that ``load`` may change, those of the optimizer included: :func:`state_of`.

    Returns:
        What ``load`` returned on rank 0.

    Raises:
        ValueError: on ranks other than 0, when ``load`` failed on rank 0, which raises the error itself.
    """
    engine = engine_of_processes(strategy)
    if engine is None:
        return load()
    with explained(engine.member):
        return _load_and_send(engine, engine.process_group, load, variables)


def _load_and_send(
    engine: Engine, process_group: ProcessGroup, load: Callable[[], str], variables: Sequence[Any]
) -> str:
    """Loads on rank 0, and sends the loaded values to all processes."""
    values = [variable.value for variable in variables]

    def attempt() -> tuple[str, Exception | None]:
        try:
            return load(), None
        except Exception as caught:
            # The others wait for a message in any case.
            return f"{type(caught).__name__}: {caught}", caught

    # A metric variable, of which each process holds a part, is read when it is set, which rank 0 alone could not do.
    with engine.metric_totals([value for value in values if isinstance(value, MetricVariable)]):
        text, error = drive(engine, variables, attempt) or ("", None)
    failed = bool(process_group.broadcast(tf.constant(error is not None)))
    text = broadcast_text(text, process_group)
    if error is not None:
        raise error
    if failed:
        raise ValueError(f"Rank 0 could not load the state for all processes. {text}")
    for variable, value in zip(variables, values, strict=True):
        if isinstance(value, PartialSumVariable):
            value.is_spread.assign(False)
        if 0 not in (owners_of(variable) or [0]):
            # Its owners have the value. One process' accumulator is a remote variable on others, so the test must use
            # only what all processes know.
            continue
        if isinstance(value, MetricVariable):
            # Rank 0 has set its own part of the total, and the parts of the others are equal to it.
            shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
            for part in value.values:
                part.assign(assembled(shape, dtype, slices(process_group, 0, shape, dtype, part.read_value)))
        else:
            give_to_all(variable, process_group)
    return text


def sum_accumulated(optimizer: Any) -> None:
    """Sums the gradients that the optimizer has accumulated over all processes, so that rank 0 alone can save them.

    With ``gradient_accumulation_steps``, each process holds its own part of the gradients since the last update.
    ``fit`` sums them before the callbacks at the end of an epoch. A program that saves at another time, between two
    updates, calls this function on all processes. Training continues with the same sums. Where no sum is needed,
    nothing changes.

    Args:
        optimizer: a Keras optimizer, or None.
    """
    level(accumulators_of(optimizer))
