"""Values of each local replica, which copies of the first replica's ops take in place of that replica's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.shares import NotAlikeError


class Pairs:
    """Tensors of all local replicas, found by that of replica 0; iterating returns those of each."""

    def __init__(self) -> None:
        self._pairs: dict[str, Sequence[Any]] = {}

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self._pairs.values())

    def get(self, tensor: Any) -> Sequence[Any] | None:
        """Returns the tensors of all replicas for one of replica 0; None if it is not registered."""
        return self._pairs.get(_key(tensor))

    def named(self, name: str) -> Sequence[Any] | None:
        """Returns the tensors of all replicas for the name of a tensor of replica 0 in a graph."""
        return self._pairs.get(name)

    def add(self, values: Sequence[Any]) -> None:
        """Registers a nest of values of each replica: copies take those of their replica in place of the first's.

        Args:
            values: a nest for each local replica, all of the same structure.

        Raises:
            NotAlikeError: the nests have other structures, dtypes or static shapes.
        """
        try:
            for each in values[1:]:
                tf.nest.assert_same_structure(values[0], each, expand_composites=True)
        except (TypeError, ValueError) as error:
            raise NotAlikeError("values of replicas have different structures") from error
        flat = [tf.nest.flatten(each, expand_composites=True) for each in values]
        for leaves in zip(*flat, strict=True):
            self._add(leaves)

    def _add(self, leaves: Sequence[Any]) -> None:
        first = leaves[0]
        if all(each is first for each in leaves):
            return
        if not all(isinstance(each, tf.Tensor) for each in leaves):
            # Components of variables are exchanged by their resources.
            if all(isinstance(each, tf.Variable) for each in leaves) or _equal(leaves):
                return
            raise NotAlikeError(f"replicas have different values, such as {first!r}")
        if len({(each.dtype, str(each.shape)) for each in leaves}) > 1:
            raise NotAlikeError("values of replicas have different dtypes or static shapes")
        known = self._pairs.setdefault(_key(first), tuple(leaves))
        if any(one is not other for one, other in zip(known, leaves, strict=True)):
            raise NotAlikeError("one value of the first replica stands for different ones of another replica")


def _key(tensor: Any) -> str:
    return f"eager {id(tensor)}" if hasattr(tensor, "numpy") else str(tensor.name)


def _equal(leaves: Sequence[Any]) -> bool:
    first = leaves[0]
    plain = (bool, int, float, str, bytes)
    return isinstance(first, plain) and all(type(each) is type(first) and each == first for each in leaves)
