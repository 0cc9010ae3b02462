"""What holds for the collectives that are being created: a description of what they carry, and what they wait for.

Their callers set it; the transports read it when they create collectives.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class CollectiveContext:
    """What holds for the collectives that are being created.

    Attributes:
        description: the text of :func:`carrying`; empty if none is set.
        dependency: a tensor of the step that is computed before any of its collectives starts; None if there is none.
    """

    description: str = ""
    dependency: tf.Tensor | None = None


_UNKNOWN = CollectiveContext()
_context: contextvars.ContextVar[CollectiveContext] = contextvars.ContextVar(
    "keras_strategies_collectives", default=_UNKNOWN
)


@contextlib.contextmanager
def _changed(**changed: Any) -> Iterator[None]:
    token = _context.set(dataclasses.replace(_context.get(), **changed))
    try:
        yield
    finally:
        _context.reset(token)


def carrying(what: str) -> contextlib.AbstractContextManager[None]:
    """Runs the block with `what`, as in "gradients of dense/kernel", as description; nested blocks override it."""
    return _changed(description=what)


def carried() -> str:
    """Returns the description of what collectives carry now; empty if none is set."""
    return _context.get().description


def collectives_after(dependency: tf.Tensor | None) -> contextlib.AbstractContextManager[None]:
    """Runs the block with a control dependency, unless None, for all collectives that cannot be cancelled.

    A process that finds an error ends its step at once, but cannot cancel what it has submitted to Horovod: that would
    wait for a peer that has ended its step, too. The contract is tested in
    ``tests/strategies/processes/spanning_refusals.py``.
    """
    return _changed(dependency=dependency)


def step_dependencies() -> list[tf.Tensor]:
    """Returns [dependency] if it belongs to the graph being traced, else []: callers of nested functions order them."""
    dependency = _context.get().dependency
    is_in_graph = (
        dependency is not None and not tf.executing_eagerly() and dependency.graph is tf.compat.v1.get_default_graph()
    )
    return [dependency] if is_in_graph else []


def listed(names: list[str], at_most: int = 2) -> str:
    """Returns "a, b and 3 more"."""
    more = len(names) - at_most
    return f"{', '.join(names[:at_most])}{f' and {more} more' if more > 0 else ''}"
