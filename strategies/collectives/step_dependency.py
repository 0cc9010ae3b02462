"""The control dependency of a traced step: a tensor that is computed before any collective of the step starts.

A process that finds an error ends its step at once, but cannot cancel what it has submitted to Horovod: that would wait
for a peer that has ended its step, too. The contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_dependency: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar(
    "keras_strategies_step_dependency", default=None
)


@contextlib.contextmanager
def after(dependency: tf.Tensor | None) -> Iterator[None]:
    """Runs the block with a control dependency, unless None, for all collectives that cannot be cancelled."""
    token = _dependency.set(dependency)
    try:
        yield
    finally:
        _dependency.reset(token)


def step_dependencies() -> list[tf.Tensor]:
    """Returns [dependency] if it belongs to the graph being traced, else []: callers of nested functions order them."""
    dependency = _dependency.get()
    is_in_graph = (
        dependency is not None and not tf.executing_eagerly() and dependency.graph is tf.compat.v1.get_default_graph()
    )
    return [dependency] if is_in_graph else []
