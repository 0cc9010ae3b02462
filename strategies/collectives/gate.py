"""The gate of a step: a tensor that must be computed before any collective of the step starts, in a traced function.

A process that finds an error ends its step at once, but cannot cancel what it has submitted to Horovod: that would wait
for a peer that has ended its step, too. The contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_gate: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("keras_strategies_gate", default=None)


@contextlib.contextmanager
def behind(gate: tf.Tensor | None) -> Iterator[None]:
    """Runs the block with a control dependency, unless None, for all collectives that cannot be cancelled."""
    token = _gate.set(gate)
    try:
        yield
    finally:
        _gate.reset(token)


def gates_here() -> list[tf.Tensor]:
    """Returns [gate] if it belongs to the graph being traced, else []: callers of nested functions order them."""
    gate = _gate.get()
    is_here = gate is not None and not tf.executing_eagerly() and gate.graph is tf.compat.v1.get_default_graph()
    return [gate] if is_here else []
