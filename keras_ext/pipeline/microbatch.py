"""Cuts batches into micro-batches, and joins these again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.tensor_metadata import LOGITS, MASK, metadata_of, set_metadata
from strategies import layer_api
from strategies.evenly import even_bounds, even_sizes


@dataclass(frozen=True)
class Microbatches:
    """The micro-batches of a batch, of sizes as equal as possible, the larger ones first.

    A batch whose number of rows is not known at tracing may have fewer rows than micro-batches. A micro-batch without
    rows then has a copy of the last row as a dummy row, with weight 0.

    Attributes:
        number: the number of micro-batches.
        num_rows: the number of rows of the batch; int, or int32 scalar if it is not known at tracing.
    """

    number: int
    num_rows: Any

    @classmethod
    def from_batch(cls, structure: Any, number: int) -> Microbatches:
        """Returns the micro-batches of a batch.

        Args:
            structure: the batch, a nest of tensors ``(rows, ...)`` and None.
            number: the number of micro-batches; fewer are made of a batch that is known to have fewer rows.

        Raises:
            ValueError: the batch has no tensor with rows.
        """
        first = next((leaf for leaf in keras.tree.flatten(structure) if leaf is not None and len(leaf.shape)), None)
        if first is None:
            raise ValueError(f"A pipeline cuts batches by their rows. Received a batch without any: {structure!r}.")
        rows = first.shape[0]
        if rows is None:
            return cls(number, ops.shape(first)[0])
        return cls(max(1, min(number, rows)), rows)

    def split(self, structure: Any) -> list[Any]:
        """Returns a structure like the given one for each micro-batch; masks of tensors are split, too."""
        if self.number == 1:
            return [structure]
        leaves = keras.tree.flatten(structure)
        cut = [self._split_one(leaf) for leaf in leaves]
        for pieces, mask in zip(cut, metadata_of(leaves, MASK), strict=True):
            if mask is not None:
                set_metadata(pieces, MASK, self._split_one(mask))
        return [keras.tree.pack_sequence_as(structure, list(pieces)) for pieces in zip(*cut, strict=True)]

    def _split_one(self, value: Any) -> list[Any]:
        if value is None or not len(value.shape):
            return [value] * self.number
        if isinstance(self.num_rows, int) and value.shape[0] is not None:
            pieces = list(ops.split(value, even_bounds(self.num_rows, self.number, ops.minimum)[1:-1], axis=0))
        else:
            last = self.num_rows - 1
            pieces = [
                value[ops.minimum(start, last) : ops.maximum(end, ops.minimum(start, last) + 1)]
                for start, end in itertools.pairwise(even_bounds(self.num_rows, self.number, ops.minimum))
            ]
        layer_api.as_rows(pieces, value)
        return pieces

    def weights(self) -> list[Any]:
        """Returns each micro-batch's share of the rows, its weight in a mean over the batch; the shares add up to 1.

        They are floats, or float32 scalars if the number of rows is not known at tracing.
        """
        sizes = [end - start for start, end in itertools.pairwise(even_bounds(self.num_rows, self.number, ops.minimum))]
        if isinstance(self.num_rows, int):
            return [size / self.num_rows for size in sizes]
        return [ops.divide(ops.cast(size, "float32"), ops.cast(self.num_rows, "float32")) for size in sizes]

    @property
    def sizes(self) -> frozenset[int]:
        """The numbers of rows of the micro-batches; empty if they are not known at tracing."""
        return frozenset(even_sizes(self.num_rows, self.number)) if isinstance(self.num_rows, int) else frozenset()

    def join(self, structures: Sequence[Any]) -> Any:
        """Joins micro-batches, or values computed from them, into a batch, together with masks and logits."""
        if self.number == 1:
            return structures[0]

        def joined(*pieces: Any) -> Any:
            if pieces[0] is None:
                return None
            value = self._join_one(pieces)
            for name in (MASK, LOGITS):
                own = metadata_of(pieces, name)
                if all(each is not None for each in own):
                    set_metadata([value], name, [self._join_one(own)])
            return value

        return keras.tree.map_structure(joined, *structures)

    def _join_one(self, pieces: Sequence[Any]) -> Any:
        value = ops.concatenate(pieces, axis=0)
        if not isinstance(self.num_rows, int):
            # Dummy rows are at the end. Without dummy rows nothing is cut off, because an output may have another
            # number of rows than the batch.
            value = value[: ops.where(self.num_rows < self.number, self.num_rows, ops.shape(value)[0])]
        layer_api.as_rows(value, list(pieces))
        return value
