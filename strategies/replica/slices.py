"""Gradients of tables in which rows are looked up: one slice for each index that was looked up.

Keras' optimizers process each slice by itself: Adam squares them one by one, though two may belong to the same row of
the table. So the number of slices matters. One device has one slice for each index:

* an index that comes from the rows of the batch is looked up by one replica, which has its slice; the slices of all
  replicas are concatenated;
* an index that does not, such as a position in a sequence, is looked up by all replicas, each of which has its part of
  the one slice: these are added;
* an index that comes out of a ``Unique``, as in a product with a sparse matrix, has one slice on one device, however
  many rows contain it; the slices of all replicas are added by index.

Each lookup has its own slices, even where several look up the same table. The gradient of a table that is used in other
ways as well, such as a tied output, is a tensor, and is added as such. All of this applies to the micro-batches of a
batch, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.collectives.fixed_order import sum_in_order


@dataclass(frozen=True)
class Lookups:
    """The slices of one replica, or micro-batch, by lookup.

    Attributes:
        shared: the slices of each lookup whose indices do not depend on the rows.
        own: the slices of all other lookups.
        unique: the slices of each lookup whose indices come from the rows, each index once.
    """

    shared: tuple[tf.IndexedSlices, ...]
    own: tuple[tf.IndexedSlices, ...]
    unique: tuple[tf.IndexedSlices, ...] = ()

    @classmethod
    def from_gradient(cls, slices: tf.IndexedSlices, dependence: RowDependence) -> Lookups:
        """Splits a gradient into the slices of its lookups.

        Raises:
            ValueError: several lookups have sizes that are not known when the function is traced.
        """
        parts = dependence.parts(slices.indices)
        if all(kind not in (Kind.SAME, Kind.DISTINCT) for kind, _ in parts):
            return cls((), (slices,))
        found: dict[Kind, list[tf.IndexedSlices]] = {Kind.SAME: [], Kind.ROWS: [], Kind.DISTINCT: []}
        begin: Any = 0
        for (kind, _), size in zip(parts, _sizes(parts, slices.indices), strict=True):
            indices = mark(slices.indices[begin : begin + size], kind)
            found[kind if kind in found else Kind.ROWS].append(
                tf.IndexedSlices(slices.values[begin : begin + size], indices, slices.dense_shape)
            )
            begin = begin + size
        return cls(tuple(found[Kind.SAME]), tuple(found[Kind.ROWS]), tuple(found[Kind.DISTINCT]))

    def joined(self) -> tf.IndexedSlices:
        """Returns all slices: the shared ones, then the others, then the unique ones."""
        return side_by_side([*self.shared, *self.own, *self.unique])


def _sizes(parts: Sequence[tuple[Kind, Any]], indices: tf.Tensor) -> list[Any]:
    sizes = [size for _, size in parts]
    unknown = [i for i, size in enumerate(sizes) if size is None]
    if len(unknown) > 1:
        raise ValueError(
            "A table is looked up several times in one function, by positions and by what depends on the batch, and "
            "their numbers are not known when the function is traced, so that their gradients cannot be distinguished. "
            f"Look positions up by a number of them that is known, or in separate tables. Received: {indices}."
        )
    for i in unknown:
        sizes[i] = tf.shape(indices)[0] - sum(size for size in sizes if size is not None)
    return sizes


def side_by_side(all_slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns all slices, concatenated."""
    if len(all_slices) == 1:
        return all_slices[0]
    values, indices = (tf.concat(each, 0) for each in zip(*((s.values, s.indices) for s in all_slices), strict=True))
    return tf.IndexedSlices(values, indices, all_slices[0].dense_shape)


def summed_by_index(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns one slice for each index, in the order of first occurrence, as in ``tf.unique``."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, mark(indices, Kind.DISTINCT), slices.dense_shape)


def added(gradients: Iterable[Any]) -> Any:
    """Returns the sum of gradients (tensors or slices of rows) in their order; None if there are none."""
    total = None
    for gradient in gradients:
        total = gradient if total is None else total if gradient is None else _sum_of(total, gradient)
    return total


def _sum_of(one: Any, other: Any) -> Any:
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        return side_by_side([one, other])
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def accumulated(total: Any, gradient: Any, dependence: RowDependence) -> Any:
    """Adds the gradient of one more micro-batch to that of the earlier ones; the same program computed both.

    Each is a tensor, slices, or None if there is no gradient.
    """
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        return combine_lookups([Lookups.from_gradient(each, dependence) for each in (total, gradient)]).joined()
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(gradient)


def combine_lookups(parts: Sequence[Lookups]) -> Lookups:
    """Returns the slices of a batch, given those of its parts, which one program computed."""
    shared = [
        tf.IndexedSlices(sum_in_order(each.values for each in alike), alike[0].indices, alike[0].dense_shape)
        for alike in zip(*(part.shared for part in parts), strict=True)
    ]
    unique = [
        alike[0] if len(alike) == 1 else summed_by_index(side_by_side(alike))
        for alike in zip(*(part.unique for part in parts), strict=True)
    ]
    return Lookups(tuple(shared), tuple(each for part in parts for each in part.own), tuple(unique))
