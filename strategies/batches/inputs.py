"""Splits every global batch of a dataset among replicas, by rows, in order.

Replica r of N gets the r-th run of consecutive rows of each global batch. Sizes differ by at most one row, larger
ones first, whatever the batch size; batches never mix. TensorFlow's own distributed dataset re-batches instead:
one step can get rows of two batches, and a short batch goes entirely to the first replicas.

The result is a plain ``tf.data.Dataset`` whose elements are per-replica values. It iterates inside ``tf.function``,
knows its cardinality, and ends on all replicas at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica, PerReplicaSpec
from strategies.batches.first_batch import checksums
from strategies.batches.pipeline_ops import reads_generator
from strategies.batches.portions import Portion
from strategies.batches.rows import is_batch, num_rows, take_rows
from strategies.evenly import even_bounds


def distribute(dataset: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
    """Returns ``dataset`` with every leaf of its elements as a per-replica value.

    Args:
        dataset: yields global batches: any nest of dense, ragged or sparse tensors of shape ``(rows, ...)``.
            Every replica gets the scalars and optionals in it whole.
        num_replicas: size of the data axis.

    Returns:
        A dataset of the same cardinality; on replica r the leaves have shape ``(rows_r, ...)``. For one replica, the
        dataset itself.

    Raises:
        ValueError: if the dataset's elements hold no batch.
    """
    if num_replicas == 1 or is_distributed(dataset):
        return dataset
    return map_batches(dataset, lambda batch: share_out(batch, num_replicas))


def map_batches(dataset: tf.data.Dataset, share: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns ``dataset`` with ``share`` applied to each batch.

    Raises:
        ValueError: if the dataset's elements hold no batch.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    if not any(getattr(spec, "shape", None) is not None and spec.shape.rank != 0 for spec in specs):
        raise ValueError(
            "The dataset has no batches to share out among replicas: call `.batch(global_batch_size)` on it. "
            f"Received elements of the form {dataset.element_spec}"
        )

    @tf.autograph.experimental.do_not_convert
    def shared(*element: Any) -> Any:
        return tf.nest.pack_sequence_as(dataset.element_spec, tf.nest.flatten(share(element)))

    # Slices are views, so there is nothing to prepare ahead. Reading ahead would lose batches of a generator that
    # several calls of `fit` read from; by default, TensorFlow makes any map read ahead.
    return dataset.map(shared, synchronous=True if reads_generator(dataset) else None)


def with_checksums(dataset: tf.data.Dataset, share: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns pairs of checksums and the elements of `map_batches`; the checksums are zeros after the first batch."""
    spec = dataset.element_spec
    num_leaves = len(tf.nest.flatten(spec))

    @tf.autograph.experimental.do_not_convert
    def pair(number: tf.Tensor, element: Any) -> Any:
        values = tf.cond(number == 0, lambda: checksums(element), lambda: tf.zeros([num_leaves], tf.int64))
        return values, tf.nest.pack_sequence_as(spec, tf.nest.flatten(share(element)))

    return dataset.enumerate().map(pair, synchronous=True if reads_generator(dataset) else None)


def is_distributed(dataset: tf.data.Dataset) -> bool:
    """Returns True if the dataset's elements are per-replica values already."""
    return any(isinstance(spec, PerReplicaSpec) for spec in tf.nest.flatten(dataset.element_spec))


def share_out(batch: Any, num_replicas: int) -> Any:
    """Splits every tensor of a global batch among the replicas.

    Args:
        batch: nest of tensors or arrays of global shape ``(rows, ...)``; scalars, None and others are not split.
        num_replicas: size of the data axis.

    Returns:
        The same nest with, for each tensor, a per-replica value of local shapes ``(rows_r, ...)``, where ``rows_r``
        is ``rows // num_replicas``, and one more on the first ``rows % num_replicas`` replicas.
    """

    def share(value: Any) -> Any:
        if hasattr(value, "__array__") and not tf.is_tensor(value):
            value = tf.convert_to_tensor(value)
        if not is_batch(value):
            return value if value is None else PerReplica((value,) * num_replicas)
        bounds = even_bounds(num_rows(value), num_replicas, tf.minimum)
        return PerReplica(tuple(take_rows(value, bounds[r], bounds[r + 1]) for r in range(num_replicas)))

    return tf.nest.map_structure(share, batch)


def portion_out(batch: Any, first_replica: int, num_local: int, num_replicas: int) -> Any:
    """Takes this process' rows from a global batch, which is the same on every process.

    Args:
        batch: as for :func:`share_out`, the same on all processes.
        first_replica: the index of the first local replica among all replicas.
        num_local: the number of local replicas.
        num_replicas: size of the data axis.

    Returns:
        The same nest with a :class:`Portion` for each tensor, whose rows are those of :func:`share_out`.
    """

    def cut(value: Any) -> Any:
        if hasattr(value, "__array__") and not tf.is_tensor(value):
            value = tf.convert_to_tensor(value)
        if not is_batch(value):
            return value if value is None else PerReplica((value,) * num_local)
        rows: Any = num_rows(value)
        return _portion(
            value, rows, even_bounds(rows, num_replicas, tf.minimum)[first_replica : first_replica + num_local + 1], 0
        )

    return tf.nest.map_structure(cut, batch)


def portion_of(batch: Any, rows: Any, first_replica: int, num_local: int, num_replicas: int) -> Any:
    """Splits this process' rows of a global batch among its local replicas.

    Args:
        batch: nest of tensors of this process' rows; where it has none, of any one row.
        rows: the number of rows of the global batch, int or int32 scalar.
        first_replica: the index of the first local replica among all replicas.
        num_local: the number of local replicas.
        num_replicas: size of the data axis.

    Returns:
        The same as :func:`portion_out` of the global batch, except that dummy rows are this process' first row.
    """
    bounds = even_bounds(rows, num_replicas, tf.minimum)[first_replica : first_replica + num_local + 1]
    return tf.nest.map_structure(lambda value: _portion(value, rows, bounds, bounds[0]), batch)


def _portion(value: Any, rows: Any, bounds: list[Any], offset: Any) -> Portion:
    """Splits `value`, the rows from `offset` on, at `bounds`; a replica without rows gets its first as a dummy row."""
    own = [end - begin for begin, end in itertools.pairwise(bounds)]
    values = []
    for begin, end, count in zip(bounds, bounds[1:], own, strict=False):
        if isinstance(rows, int):
            begin, end = (begin - offset, end - offset) if count else (0, min(1, rows))
        else:
            has_rows = tf.greater(count, 0)
            begin = tf.where(has_rows, begin - offset, 0)
            end = tf.where(has_rows, end - offset, tf.minimum(1, rows))
        values.append(take_rows(value, begin, end))
    static = (*own, rows) if isinstance(rows, int) else None
    counts = tf.stack([tf.convert_to_tensor(count, tf.int32) for count in own])
    return Portion(tuple(values), counts, tf.convert_to_tensor(rows, tf.int32), static)
