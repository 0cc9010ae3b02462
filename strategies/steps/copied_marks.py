"""The marks of tensors that the copies of a replica's ops need as well: all that this package sets."""

from __future__ import annotations

from typing import Any

_PREFIX = "_keras_strategies_"


def copy_marks(original: Any, copy: Any) -> Any:
    """Copies the marks of a tensor to the tensor of another replica, and returns that."""
    if copy is not original:
        vars(copy).update({key: value for key, value in vars(original).items() if key.startswith(_PREFIX)})
    return copy
