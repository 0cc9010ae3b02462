"""The pass that is being traced, forward or backward: one frozen value with what holds for it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from strategies.frozen_context import FrozenContext


@dataclasses.dataclass(frozen=True)
class PassContext:
    """The pass that is being traced.

    Attributes:
        placeholders: the `Placeholders` that the traced function captures instead of sharded weights; None where
            weights are gathered when they are read.
        is_recomputed: whether the pass is computed a second time in the backward pass.
        is_differentiated: whether the pass of a `Passes` is differentiated; more forward passes may follow.
    """

    placeholders: Any = None
    is_recomputed: bool = False
    is_differentiated: bool = False


_context = FrozenContext("keras_strategies_pass", PassContext())


def pass_context() -> PassContext:
    """Returns what holds for the pass that is being traced."""
    return _context.get()


def tracing_pass(**changed: Any) -> contextlib.AbstractContextManager[None]:
    """Context manager: the attributes of the pass context given as arguments have other values."""
    return _context.changing(**changed)
