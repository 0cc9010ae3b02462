"""The marks of tensors that the copies of a replica's ops need as well: all that this package sets."""

from __future__ import annotations

from typing import Any

_PREFIX = "_keras_strategies_"


def has_marks(tensor: Any) -> bool:
    """Returns True if this package has marked the tensor."""
    return any(key.startswith(_PREFIX) for key in vars(tensor))


def copy_marks(original: Any, copy: Any) -> Any:
    """Copies the marks of a tensor to the tensor of another replica, and returns that."""
    if copy is not original:
        vars(copy).update({key: value for key, value in vars(original).items() if key.startswith(_PREFIX)})
    return copy


def are_marked_alike(op: Any, other: Any) -> bool:
    """Returns True if the outputs of two ops of one type have the same marks."""
    return _marks(op) == _marks(other)


def _marks(op: Any) -> list[dict[str, int]]:
    # By identity: tensors among the values are compared by ops.
    return [{key: id(value) for key, value in vars(output).items() if key.startswith(_PREFIX)} for output in op.outputs]
