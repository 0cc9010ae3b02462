"""A plain ``tf.data.Dataset`` of portions of global batches whose first batch can be compared between processes.

The comparison precedes the first step. So once per call of the trainer, the first element is drawn early and then put
back in front of the others. A second iterator would advance a generator and shuffle again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import UnaryUnchangedStructureDataset, tensor_lists
from strategies.batches import first_batch
from strategies.batches.autotuning import without_idle_autotuning
from strategies.batches.origins import Origin
from strategies.collectives.agreement import Agreement


class Checked:
    """A dataset of portions paired with checksums: those of the first global batch, then zeros.

    Args:
        make: returns the dataset of pairs; called when the dataset is needed.
        origins: returns the origins of the tensors that have checksums; called when they are needed. None if only the
            processes of one replica have the same batches.
    """

    def __init__(self, make: Callable[[], tf.data.Dataset], origins: Callable[[], list[Origin]] | None) -> None:
        self._make = make
        self._origins = origins

    def dataset(self) -> tf.data.Dataset:
        """Returns the dataset of pairs of checksums, int64 ``[leaves]``, and a portion."""
        return self._make()

    def message(self, values: Any, *, are_arrays: bool) -> list[int]:
        """Returns this process' message about its first batch.

        Args:
            values: the checksums of the batch; None if the process has no batch.
            are_arrays: True if the only random thing in the dataset is the order of the rows of arrays.
        """
        numbers = [] if values is None else values.numpy().tolist()
        if self._origins is None:
            return first_batch.message(numbers, [Origin.RANDOM] * len(numbers))
        origins = self._origins()
        if are_arrays:
            origins = [Origin.DATA] * len(origins)
        return first_batch.message(numbers or [0] * len(origins), origins)


class ComparedDataset(UnaryUnchangedStructureDataset):
    """A dataset, equally long on all processes, that compares its first element between processes on request.

    Args:
        dataset: the dataset of portions.
        checked: the same portions with checksums.
        agreement: exchanges numbers between the processes.
    """

    def __init__(self, dataset: tf.data.Dataset, checked: Checked, agreement: Agreement) -> None:
        super().__init__(dataset, dataset._variant_tensor)
        self._portions = dataset
        self._checked = checked
        self._agreement = agreement
        self._transformations: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []
        self._is_due = self._are_arrays = False

    def compare_next(self, *, are_arrays: bool) -> None:
        """Requests that the first element of the next iterator be compared. All processes call it."""
        self._is_due, self._are_arrays = True, are_arrays

    def apply(self, transformation_func: Callable[[tf.data.Dataset], tf.data.Dataset]) -> ComparedDataset:
        """Returns the dataset with the function applied to its portions, which it must map one by one."""
        applied = ComparedDataset(transformation_func(self._portions), self._checked, self._agreement)
        applied._transformations = [*self._transformations, transformation_func]
        return applied

    def __iter__(self) -> Iterator[Any]:
        if not self._is_due or not tf.executing_eagerly():
            return iter(self._portions)
        self._is_due = False
        dataset = self._compared()
        for transformation in self._transformations:
            dataset = dataset.apply(transformation)
        return iter(dataset)

    def _compared(self) -> tf.data.Dataset:
        checked = self._checked.dataset()
        iterator = iter(without_idle_autotuning(_without_prefetch(checked)))
        first = next(iterator, None)
        values = None if first is None else first[0]
        mine = self._checked.message(values, are_arrays=self._are_arrays)
        first_batch.judge(self._agreement.gathered("checksums of the first batch", *mine), self._agreement.num_together)
        if first is None:
            return checked.map(lambda _, element: element)
        return _rejoined(first, iterator, checked)


def _rejoined(first: Any, iterator: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns one dataset of portions: that of the first pair, then those of the pairs left in the iterator."""
    spec, size = dataset.element_spec, dataset.cardinality()
    types, shapes = tensor_lists.get_flat_tensor_types(spec), tensor_lists.get_flat_tensor_shapes(spec)

    @tf.autograph.experimental.do_not_convert
    def element(index: tf.Tensor, held: tuple[tf.Tensor, list[tf.Tensor]]) -> Any:
        handle, tensors = held
        drawn = tf.cond(
            index == 0,
            lambda: [*map(tf.identity, tensors)],
            lambda: tf.raw_ops.IteratorGetNext(iterator=handle, output_types=types, output_shapes=shapes),
        )
        _, found = tensor_lists.from_compatible_tensor_list(spec, drawn)
        return found

    # The function captures nothing. Its graph lives until garbage collection, and would keep a captured iterator alive,
    # whose threads take longer to end, the longer they have run.
    held = iterator._iterator_resource, tuple(tensor_lists.to_tensor_list(spec, first))
    numbers = tf.data.Dataset.range(tf.int64.max if size == tf.data.INFINITE_CARDINALITY else size)
    both = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensors(held).repeat()))
    # Synchronous: like the portions themselves, no element is read ahead.
    return both.map(element, synchronous=True).with_options(dataset.options())


def _without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without the prefetch that TensorFlow would append; the rejoined dataset gets its own."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)
