"""Copies the attributes of a weight that determine how it is trained and read, but not its value, to its copy."""

from __future__ import annotations

from typing import Any

from strategies import layer_api

#: Attributes of Keras variables and of `SplitWeight`s, except those that are passed when a variable is created.
ATTRIBUTES = ("trainable", "regularizer", "constraint", "overwrite_with_gradient", "_autocast")


def take_attributes(old: Any, new: Any) -> None:
    """Copies everything that a program can set on the old weight, except its value, to the new one.

    Weights are variables or `SplitWeight`s. The copy has the path of the old weight, and an optimizer treats both
    alike: a weight that is excluded from weight decay stays excluded.
    """
    for name in ATTRIBUTES:
        value = getattr(old, name)
        if getattr(new, name) is not value:
            setattr(new, name, value)
    layer_api.note_copy(old, new)
