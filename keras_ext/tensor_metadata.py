"""The metadata that Keras keeps as attributes of tensors: lost where a tensor goes into a function, or is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: The mask of a sequence: true for the entries that are there.
MASK = "_keras_mask"
#: The logits of which a softmax or a sigmoid was computed: Keras' losses go by them.
LOGITS = "_keras_logits"


def metadata_of(tensors: Iterable[Any], name: str) -> list[Any]:
    """Returns the attribute of each of the tensors, or None."""
    return [getattr(tensor, name, None) for tensor in tensors]


def set_metadata(tensors: Iterable[Any], name: str, values: Sequence[Any]) -> None:
    """Sets the attribute of each tensor to its value, unless that is None."""
    for tensor, value in zip(tensors, values, strict=True):
        if value is not None:
            setattr(tensor, name, value)


def not_none(values: Iterable[Any]) -> list[Any]:
    """Returns those that are not None."""
    return [value for value in values if value is not None]
