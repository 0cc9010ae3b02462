"""The gate of a step: what must be known before any of its collectives starts, in a function that is being traced.

A process that finds an error ends its step at once, but cannot take back what it has handed to Horovod: it would wait
for a peer that has ended its step, too. Its contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_gate: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("keras_strategies_gate", default=None)


@contextlib.contextmanager
def behind(gate: tf.Tensor | None) -> Iterator[None]:
    """Inside, collectives that cannot be cancelled start when a tensor is there; at once if None."""
    token = _gate.set(gate)
    try:
        yield
    finally:
        _gate.reset(token)


def gates_here() -> list[tf.Tensor]:
    """The tensor, unless another function is being traced than that which has it: what that calls comes behind it."""
    gate = _gate.get()
    is_here = gate is not None and not tf.executing_eagerly() and gate.graph is tf.compat.v1.get_default_graph()
    return [gate] if is_here else []
