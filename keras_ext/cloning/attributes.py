"""The attributes of a weight beside its value, handed to its copy: what it is trained by, and how it is read."""

from __future__ import annotations

from typing import Any

from strategies import layer_api

#: Of a variable of Keras, and of a weight in shards. What decides how a variable is made is given where it is made.
ATTRIBUTES = ("trainable", "regularizer", "constraint", "overwrite_with_gradient", "_autocast")


def take_attributes(old: Any, new: Any) -> None:
    """Gives the copy of a weight, a variable or a split one, all that a program can set on it, but its value.

    The copy has the path of the old weight, and to an optimizer that was told by a variable which weights do not decay
    it is what the old weight is.
    """
    for name in ATTRIBUTES:
        value = getattr(old, name)
        if getattr(new, name) is not value:
            setattr(new, name, value)
    layer_api.note_copy(old, new)
