"""The metadata that Keras keeps as attributes of tensors, which are lost if a tensor enters a function or is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: The mask of a sequence: true for entries that are not padding.
MASK = "_keras_mask"
#: The logits from which a softmax or a sigmoid was computed: Keras' losses use them.
LOGITS = "_keras_logits"


def metadata_of(tensors: Iterable[Any], name: str) -> list[Any]:
    """Returns the attribute of each of the tensors; None for a tensor without it."""
    return [getattr(tensor, name, None) for tensor in tensors]


def set_metadata(tensors: Iterable[Any], name: str, values: Sequence[Any]) -> None:
    """Sets the attribute of each tensor to its value, unless that is None."""
    for tensor, value in zip(tensors, values, strict=True):
        if value is not None:
            setattr(tensor, name, value)


def not_none(values: Iterable[Any]) -> list[Any]:
    """Returns the values that are not None."""
    return [value for value in values if value is not None]
