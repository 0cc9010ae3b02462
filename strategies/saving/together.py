"""Reads values and writes files together on all processes, for code that all of them run, such as callbacks.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.strings import gather_texts
from strategies.engine.engine import Engine, engine_of, engine_of_processes
from strategies.replica.splitting import value_of
from strategies.saving.driving import drive
from strategies.saving.restoring import variables_of
from strategies.steps.explained import explained
from strategies.steps.metric_variables import MetricVariable


def values_of(model: Any, variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns the values of a model's variables, including its metrics', on all processes; all of them call it."""
    engine = _engine(model)
    if engine is None:
        return [value_of(variable) for variable in variables]
    with engine.metric_totals([v.value for v in variables if isinstance(v.value, MetricVariable)]):
        return [value_of(variable) for variable in variables]


def write_together(model: Any, write: Callable[[], None]) -> None:
    """Runs ``write``, which saves a model and other files, on all processes.

    Where each process owns only some of the variables, rank 0 runs it, and the others serve its requests and end as it
    does: see :func:`drive`.
    """
    engine = _engine(model)
    if engine is None or not engine.owns_only_part:
        write()
    else:
        drive(engine, variables_of(model), write)


def from_all_ranks(model: Any, text: str, *, of_optimizer: bool = False) -> list[str]:
    """Returns the texts of all processes that own parts of the model, by rank; only `text` if this one owns all of it.

    Args:
        model: a Keras model.
        text: the text of this process.
        of_optimizer: True to include processes that own parts of the optimizer only.
    """
    engine = _engine(model)
    if engine is None:
        return [text]
    is_shared = engine.parts.spans_processes or (of_optimizer and engine.owns_only_part)
    return gather_texts(text, engine.process_group) if is_shared else [text]


def texts_of_job(model: Any, text: str) -> list[str]:
    """Returns the texts of all processes of a model's job, by rank; only `text` if there is one. All call it."""
    return _texts(engine_of_processes(getattr(model, "distribute_strategy", None)), text)


def rank_of(model: Any) -> tuple[int, int]:
    """Returns this process' rank in a model's job, and the number of processes."""
    engine = engine_of_processes(getattr(model, "distribute_strategy", None))
    return (0, 1) if engine is None else (engine.process_group.rank, engine.num_processes)


def texts_of_ranks(text: str) -> list[str]:
    """Returns the texts of all processes of the current scope's strategy, by rank; only `text` if there is one.

    All processes call it.
    """
    return _texts(engine_of_processes(tf.distribute.get_strategy()), text)


def _texts(engine: Engine | None, text: str) -> list[str]:
    if engine is None:
        return [text]
    with explained(engine.member):
        return gather_texts(text, engine.process_group)


def _engine(model: Any) -> Engine | None:
    strategy = getattr(model, "distribute_strategy", None)
    return None if strategy is None else engine_of(strategy)
