"""The variables that are being created: one frozen value with what holds for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies.frozen_context import FrozenContext


@dataclasses.dataclass(frozen=True)
class CreationContext:
    """The variables that are being created.

    Attributes:
        form: the shape and the dtype of the variable that Keras creates from a callable, which does not reveal them.
        row_axis: the mesh axis over which the rows (first dimension) of new weights are sharded; None if they are not.
        draws_in_place: whether large initial values are drawn in the memory of their variable.
        only_shapes: whether a model is made only for its shapes, so that its variables need no values.
        value_follows: whether another value is assigned right after the creation, so that shards are not drawn.
    """

    form: tuple[Sequence[int], str] | None = None
    row_axis: Literal["data", "expert"] | None = None
    draws_in_place: bool = False
    only_shapes: bool = False
    value_follows: bool = False


_context = FrozenContext("keras_strategies_creation", CreationContext())


def creation_context() -> CreationContext:
    """Returns what holds for the variables that are being created."""
    return _context.get()


def values_follow() -> contextlib.AbstractContextManager[None]:
    """Context manager for a copy of a model: shards of its weights are not drawn, since their values follow."""
    return creating(value_follows=True)


def creating(**changed: Any) -> contextlib.AbstractContextManager[None]:
    """Context manager: the attributes of the creation context given as arguments have other values."""
    return _context.changing(**changed)


def is_in_scope() -> bool:
    """Returns True inside the scope of a strategy."""
    return bool(tf.distribute.has_strategy())
