"""Warns when a program's step writes a ``tf.Variable`` of one device, made outside of the strategy's scope.

Replicas have no components of such a variable: they write it one after the other. `stored_values` checks Keras'
variables where they are assigned, by path; writes of TensorFlow's own variables can only be detected inside TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import BaseResourceVariable, ResourceVariable
from strategies.batches import shares
from strategies.batches.program_lines import is_called_by_program
from strategies.engine import state_writes


def install() -> None:
    """Wraps writes of TensorFlow's variables. Scatters, and writes that return the variable, end in `_lazy_read`."""
    wrap(BaseResourceVariable, "_lazy_read", _write)
    for name in ("assign", "assign_add", "assign_sub"):
        wrap(ResourceVariable, name, _write)


def _write(original: Callable[..., Any], variable: tf.Variable, *args: Any, **kwargs: Any) -> Any:
    # In TensorFlow, a component or its handle refers to the distributed variable that it belongs to.
    is_component = hasattr(variable, "_distributed_container") or hasattr(variable.handle, "_distributed_container")
    if (
        not is_component
        and shares.current() is not None
        and is_called_by_program("tensorflow", "functools", "contextlib")
    ):
        state_writes.check_in_scope(variable.name.partition(":")[0], variable)
    return original(variable, *args, **kwargs)
