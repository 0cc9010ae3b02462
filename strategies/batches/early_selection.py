"""Rebuilds a pipeline of rows and batches so that a process maps its own rows only.

``row_plans`` finds the step to cut at. There the pipeline is cut into windows of one global batch each. Of each window,
the process keeps its own rows, or one dummy row if it has none. The same functions map these rows, in order; the rows
are batched, and each batch becomes a :class:`Portion`. Each row carries the number of rows of the whole batch, so the
pipeline needs to know neither its length nor its end. A window takes less than a microsecond per omitted row; a filter
takes 80. Arrays need no windows: the process' rows of a batch are a slice of the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    AssertCardinalityDataset,
    BatchDataset,
    MapDataset,
    OptionsDataset,
    ParallelBatchDataset,
    ParallelMapDataset,
    PrefetchDataset,
    RepeatDataset,
    SkipDataset,
    TakeDataset,
    tensor_lists,
)
from strategies.batches import inputs
from strategies.batches.first_batch import checksums, checksums_of_rows
from strategies.batches.pipeline_ops import depends_on_its_arguments_only, reads_generator
from strategies.batches.row_plans import plan_rows
from strategies.evenly import even_bounds

_NAMES = {
    AssertCardinalityDataset: "assert_cardinality",
    BatchDataset: "batch",
    MapDataset: "map",
    OptionsDataset: "options",
    ParallelBatchDataset: "batch",
    ParallelMapDataset: "map",
    PrefetchDataset: "prefetch",
    RepeatDataset: "repeat",
    SkipDataset: "skip",
    TakeDataset: "take",
}


def select_before_mapping(
    dataset: tf.data.Dataset, first_replica: int, num_local: int, num_replicas: int, *, with_checksums: bool = False
) -> Any:
    """Returns this process' portions of the dataset's global batches, made from its own rows; or the reason why not.

    Args:
        dataset: global batches, the same on all processes.
        first_replica: the index of the first local replica among all replicas.
        num_local: the number of local replicas.
        num_replicas: size of the data axis.
        with_checksums: whether each element is a pair of checksums and portions. The checksums are those of the first
            global batch's rows before they are mapped; for other batches, zeros.

    Returns:
        A dataset of the same cardinality whose elements are those of :func:`inputs.portion_out`, except that dummy rows
        may be other rows. If rows cannot be selected before they are mapped, the reason, a string.
    """
    steps = list(steps_of(dataset))
    plan = plan_rows([_name(step) for step in steps])
    if isinstance(plan, str):
        return plan
    batch, source = steps[plan.batch], steps[plan.source]
    size, drop = (tf.get_static_value(value) for value in (batch._batch_size, batch._drop_remainder))
    if size is None or drop is None:
        return "its batch size is not known beforehand"
    if not (_is_plain(source.element_spec) and _is_plain(batch.element_spec)):
        return f"its elements are of another kind than tensors: {batch.element_spec}"

    local = slice(first_replica, first_replica + num_local + 1)

    def bounds_of(rows: Any) -> list[Any]:
        return even_bounds(rows, num_replicas, tf.minimum)[local]

    # The index of the first batch that the whole pipeline yields.
    skipped = sum(int(tf.get_static_value(step._count) or 0) for step in steps[: plan.batch] if _name(step) == "skip")
    first = skipped if with_checksums else None
    bounds = even_bounds(int(size), num_replicas)[local]
    num_own = max(1, bounds[-1] - bounds[0])
    if plan.of_arrays:
        if any(array.dtype == tf.variant or array.shape[:1] == [None] for array in source._tensors):
            return f"its arrays are of another kind than tensors: {batch.element_spec}"
        own = _sliced(source, int(size), bool(drop), num_own, bounds_of, first)
    else:
        own = _chosen(source, int(size), bool(drop), bounds_of, first)
        for step in reversed(steps[plan.batch + 1 : plan.source]):
            own = _reapplied(step, own)
        own = _batched(batch, own, num_own, bool(drop))
    for step in reversed(steps[: plan.batch]):
        own = _reapplied(step, own)

    @tf.autograph.experimental.do_not_convert
    def portion(head: Any, element: Any) -> Any:
        rows, first_checksums = head if with_checksums else (head, None)
        total = int(size) if drop else rows[0]
        portions = inputs.portion_of(element, total, first_replica, num_local, num_replicas)
        return portions if first_checksums is None else (first_checksums[0], portions)

    # As in `inputs.map_batches`: by default, TensorFlow may read a generator ahead.
    own = own.map(portion, synchronous=True if reads_generator(dataset) else None).with_options(dataset.options())
    length = dataset.cardinality()
    known = length != tf.data.UNKNOWN_CARDINALITY
    return own.apply(tf.data.experimental.assert_cardinality(length)) if known else own


def selected_from(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of rows from which `select_before_mapping` selects; the selection must be possible."""
    steps = list(steps_of(dataset))
    plan = plan_rows([_name(step) for step in steps])
    if isinstance(plan, str):
        raise ValueError(f"Rows are not selected before they are mapped: {plan}.")
    source: tf.data.Dataset = steps[plan.source]
    return source


def steps_of(dataset: Any) -> Iterator[Any]:
    """Yields the dataset, its input, the input of that and so on, while each has exactly one input."""
    while True:
        yield dataset
        before = dataset._inputs()
        if len(before) != 1:
            return
        (dataset,) = before


def _name(step: Any) -> str:
    name = _NAMES.get(type(step))
    if name is None:
        return re.sub(r"(?<=.)(?=[A-Z])", "_", type(step).__name__.strip("_").removesuffix("Dataset")).lower()
    return "stateful map" if name == "map" and not depends_on_its_arguments_only(step._map_func.function) else name


def _is_plain(element_spec: Any) -> bool:
    kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
    return all(isinstance(spec, kinds) for spec in tf.nest.flatten(element_spec))


def _chosen(
    source: Any, size: int, drop: bool, bounds_of: Callable[[Any], list[Any]], first: int | None
) -> tf.data.Dataset:
    """Returns pairs (head of the global batch, row), one for each of this process' rows; see `_head`."""

    @tf.autograph.experimental.do_not_convert
    def select_batch(number: tf.Tensor, window: Any) -> tf.data.Dataset:
        parts = tf.nest.pack_sequence_as(source.element_spec, tf.nest.flatten(window))
        rows = tf.cast(tf.nest.flatten(window)[0].cardinality(), tf.int32)
        bounds = bounds_of(rows)
        begin, count = bounds[0], bounds[-1] - bounds[0]
        begin, count = tf.where(count > 0, begin, 0), tf.maximum(count, 1)
        kept = tf.data.Dataset.zip(parts).skip(tf.cast(begin, tf.int64)).take(tf.cast(count, tf.int64))
        head = _head(rows, number, first, lambda: checksums_of_rows(tf.nest.flatten(window)), source)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(head).repeat(), kept))

    return source.window(size, drop_remainder=drop).enumerate().flat_map(select_batch)


def _head(rows: Any, number: tf.Tensor, first: int | None, made: Callable[[], tf.Tensor], source: Any) -> Any:
    """Returns the number of rows of a batch; with `first`, also checksums: zeros except in the batch of that index."""
    if first is None:
        return rows
    num_leaves = len(tf.nest.flatten(source.element_spec))
    return rows, tf.cond(number == first, made, lambda: tf.zeros([num_leaves], tf.int64))


def _sliced(
    source: Any, size: int, drop: bool, num_own: int, bounds_of: Callable[[Any], list[Any]], first: int | None
) -> tf.data.Dataset:
    """Returns for each batch of rows of arrays its head, with a leading dimension of 1, and this process' rows."""
    arrays = source._tensors
    num_rows = int(arrays[0].shape[0])

    @tf.autograph.experimental.do_not_convert
    def select_batch(number: tf.Tensor) -> Any:
        start = number * size
        rows = tf.cast(tf.minimum(num_rows - start, size), tf.int32)
        bounds = bounds_of(rows)
        begin, count = bounds[0], bounds[-1] - bounds[0]
        begin = start + tf.cast(tf.where(count > 0, begin, 0), tf.int64)
        own = [array[begin : begin + tf.cast(tf.maximum(count, 1), tf.int64)] for array in arrays]
        for slices, array in zip(own, arrays, strict=True):
            slices.set_shape([num_own if drop else None, *array.shape[1:]])
        head = _head(rows, number, first, lambda: checksums([array[start : start + size] for array in arrays]), source)
        head = tf.nest.map_structure(lambda each: each[tf.newaxis], head)
        return head, tf.nest.pack_sequence_as(source.element_spec, own)

    return tf.data.Dataset.range(num_rows // size if drop else -(-num_rows // size)).map(select_batch)


def _reapplied(step: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset `before` with a step of the user's pipeline added. Options and lengths are set at the end."""
    name = _NAMES[type(step)]
    if name == "map":
        return _mapped(step, before)
    if name == "prefetch":
        return before.prefetch(int(step._buffer_size))
    if name in ("repeat", "take", "skip"):
        repeated: tf.data.Dataset = getattr(before, name)(step._count)
        return repeated
    return before


def _mapped(step: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    wrapped = step._map_func

    @tf.autograph.experimental.do_not_convert
    def mapped(head: Any, element: Any) -> Any:
        # Calls the function as it was traced: the user's Python code may behave differently by now.
        results = wrapped.function(*tensor_lists.to_tensor_list(wrapped._input_structure, element))
        return head, tensor_lists.from_compatible_tensor_list(wrapped.output_structure, results)

    if type(step) is MapDataset:
        return before.map(mapped, synchronous=step._force_synchronous or None)
    # In order, even if the user allows otherwise: rows out of order would end up in another batch than their head's.
    return before.map(mapped, num_parallel_calls=step._num_parallel_calls, deterministic=True)


def _batched(step: Any, before: tf.data.Dataset, size: int, drop: bool) -> tf.data.Dataset:
    if type(step) is BatchDataset:
        return before.batch(size, drop)
    return before.batch(size, drop, num_parallel_calls=step._num_parallel_calls, deterministic=True)
