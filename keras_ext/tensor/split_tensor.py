"""A tensor in pieces, one at each shard, between one split layer and the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_ext.tensor.mappings import Shards


class SplitTensor:
    """The output of a split layer that does not gather it; Keras sees one tensor of the whole shape.

    A layer that supports it takes the pieces. Any other layer gets the whole tensor: the pieces are gathered when it is
    used, at the cost that leaving them in pieces was to avoid. So results never depend on which layers support it.

    Args:
        pieces: one tensor for each shard that this process owns.
        dim: the dim along which the tensor is cut.
        shards: the shards that hold the pieces.
        size: of the whole tensor along `dim`, int or int32 scalar; None if the pieces of all shards are equal. Needed
            only where shards belong to several processes.
    """

    def __init__(self, pieces: Sequence[Any], dim: int, shards: Shards, size: Any = None) -> None:
        self.pieces = list(pieces)
        self.dim = dim % len(pieces[0].shape)
        self.shards = shards
        self.size = size
        # The attribute in which Keras keeps a mask.
        self._keras_mask: Any = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the whole tensor, with None for unknown sizes."""
        shape = list(self.pieces[0].shape)
        sizes = [piece.shape[self.dim] for piece in self.pieces]
        if self.shards.between is None:
            shape[self.dim] = None if None in sizes else sum(sizes)
        elif self.size is None:
            shape[self.dim] = None if None in sizes else sizes[0] * self.shards.count
        else:
            shape[self.dim] = self.size if isinstance(self.size, int) else None
        return tuple(shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.pieces[0].shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the pieces."""
        return self.pieces[0].dtype

    def whole(self) -> Any:
        """Returns the whole tensor."""
        return self.shards.gather(self.pieces, self.dim, self.size)

    def each(self, function: Callable[..., Any], *others: SplitTensor) -> list[Any]:
        """Returns ``function(piece, *pieces of others)`` for every piece, on its device; `others` are cut alike."""
        return self.shards.run_each(function, self.pieces, *(other.pieces for other in others))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        # The mask is copied, too: Keras 3.12 and 3.13 do not pass it on.
        whole = whole_tensor(self)
        return whole if dtype is None else ops.cast(whole, dtype)

    # Keras converts objects that have this method to tensors, by `__tf_tensor__`.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value: np.ndarray = ops.convert_to_numpy(self.whole())
        return value if dtype is None else value.astype(dtype)

    def __repr__(self) -> str:
        return f"<SplitTensor shape={self.shape}, {self.shards.count} pieces along {self.dim}>"


def whole_tensor(tensor: Any) -> Any:
    """Returns the whole tensor, with its mask, if `tensor` is in pieces; else `tensor`."""
    if not isinstance(tensor, SplitTensor):
        return tensor
    whole = tensor.whole()
    if tensor._keras_mask is not None:
        whole._keras_mask = tensor._keras_mask
    return whole


def tensors_of(values: Sequence[Any]) -> list[Any]:
    """Returns the tensors in values: the pieces of tensors in pieces, and their size if it is a tensor.

    Values that are None have none. :func:`with_tensors` is the inverse.
    """
    found = []
    for value in values:
        if isinstance(value, SplitTensor):
            found += [*value.pieces, *([value.size] if ops.is_tensor(value.size) else [])]
        elif value is not None:
            found.append(value)
    return found


def with_tensors(values: Sequence[Any], tensors: Iterator[Any]) -> list[Any]:
    """Returns values like ``values``, without masks, made of the next tensors from ``tensors``."""
    return [None if value is None else _with_tensors(value, tensors) for value in values]


def _with_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    if not isinstance(value, SplitTensor):
        return next(tensors)
    pieces = [next(tensors) for _ in value.pieces]
    size = next(tensors) if ops.is_tensor(value.size) else value.size
    return SplitTensor(pieces, value.dim, value.shards, size)


def cut_alike(tensors: Sequence[Any]) -> list[Any]:
    """Returns `tensors`, all cut like the first one in pieces; unchanged if none is in pieces.

    Keras refuses lists that mix tensors with objects that it does not know as tensors.
    """
    first = next((tensor for tensor in tensors if isinstance(tensor, SplitTensor)), None)
    return list(tensors) if first is None else [_cut_like(first, tensor) for tensor in tensors]


def _cut_like(first: SplitTensor, tensor: Any) -> SplitTensor:
    is_cut = isinstance(tensor, SplitTensor)
    if is_cut and tensor.dim == first.dim and tensor.shards.members == first.shards.members:
        return tensor
    pieces = first.shards.split_evenly(tensor.whole() if is_cut else tensor, first.dim)
    cut = SplitTensor(pieces, first.dim, first.shards, first.size)
    cut._keras_mask = getattr(tensor, "_keras_mask", None)
    return cut
