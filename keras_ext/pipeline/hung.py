"""What Keras hangs on tensors, and what is lost where a tensor goes into a function, or is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: Which of a sequence's entries are there.
MASK = "_keras_mask"
#: What a softmax or a sigmoid was computed of: Keras' losses go by that.
LOGITS = "_keras_logits"


def hung(tensors: Iterable[Any], name: str) -> list[Any]:
    """Returns what hangs on each of the tensors, or None."""
    return [getattr(tensor, name, None) for tensor in tensors]


def hang(tensors: Iterable[Any], name: str, values: Sequence[Any]) -> None:
    """Hangs each of the values on its tensor, unless it is None."""
    for tensor, value in zip(tensors, values, strict=True):
        if value is not None:
            setattr(tensor, name, value)


def not_none(values: Iterable[Any]) -> list[Any]:
    """Returns those that are not None."""
    return [value for value in values if value is not None]
