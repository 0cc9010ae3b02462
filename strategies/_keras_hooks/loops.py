"""Clear errors for custom training loops that never call ``strategy.run``, in place of TensorFlow's.

Outside of ``strategy.run`` no replica runs: a batch of all replicas is not a tensor, and a gradient has no device. In
one process such a loop outside the scope is a correct program for one device. Several processes would each train on
their own gradients only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._keras_hooks.addresses import DTypePolicy, tf_core
from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import PerReplica
from strategies.engine.engine import Engine, engine_of
from strategies.sharding.variables import ShardedVariable

_RUN = (
    "Put the step, from the model's call to apply_gradients, into a function and have the replicas run it: "
    "strategy.run(step, args=(batch,)), with batches of strategy.experimental_distribute_dataset(dataset); or leave "
    "the loop to model.fit."
)


def install() -> None:
    """Wraps the conversion of layers' inputs, and the handles of variables."""
    wrap(DTypePolicy, "convert_input", _convert_input)
    wrap(tf_core.Variable, "handle", _handle)


def _convert_input(original: Callable[..., Any], policy: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(x, PerReplica):
        raise ValueError(
            "A layer was called on the batch of all replicas, which strategy.run would give each replica its rows of. "
            f"{_RUN} Received: a {type(x).__name__}."
        )
    return original(policy, x, *args, **kwargs)


def _handle(original: Callable[[Any], Any], variable: Any) -> Any:
    is_sharded = isinstance(variable._value, ShardedVariable)
    if is_sharded and not tf.distribute.has_strategy():
        raise ValueError(
            "A gradient with respect to weights in shards is taken outside of strategy.run, where nothing gathers "
            f"them. {_RUN} Received: {variable.path!r}."
        )
    try:
        return original(variable)
    except ValueError as error:
        if engine_of(tf.distribute.get_strategy()) is None or tf.distribute.get_replica_context() is not None:
            raise
        raise ValueError(
            "A gradient with respect to a model's weights is taken inside strategy.scope() and outside of "
            f"strategy.run, where no replica runs. {_RUN} Received: {variable.path!r}, of "
            f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas."
        ) from error


def check_runs(optimizer: Any, engine: Engine) -> None:
    """Refuses an update outside of ``strategy.run`` by an optimizer of several processes.

    Args:
        optimizer: the optimizer.
        engine: the engine of the strategy under which it was made.
    """
    if engine.num_processes > 1 and engine_of(tf.distribute.get_strategy()) is None:
        raise ValueError(
            "Gradients are applied outside of strategy.run, so that each process would train by its own ones only. "
            f"{_RUN} Received: {type(optimizer).__name__} in a job of {engine.num_processes} processes."
        )
