"""Portions of global batches, a plain ``tf.data.Dataset``, whose first batch can be compared between processes.

The comparison comes before the first step, so the first element is drawn before it, once for each call of the trainer,
and put back in front of the rest: a second iterator would read a generator further, and shuffle another time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import UnaryUnchangedStructureDataset, tensor_lists
from strategies.batches import first_batch
from strategies.batches.agreement import Agreement
from strategies.batches.origins import Origin


class Checked:
    """The elements of a dataset of portions, each with checksums: those of the first global batch, then zeros.

    Args:
        make: makes the dataset of pairs; called when it is needed.
        origins: of the tensors that the checksums are of; called when they are needed.
    """

    def __init__(self, make: Callable[[], tf.data.Dataset], origins: Callable[[], list[Origin]]) -> None:
        self._make = make
        self._origins = origins

    def dataset(self) -> tf.data.Dataset:
        """Returns pairs of checksums, int64 ``[leaves]``, and of what an element is otherwise."""
        return self._make()

    def message(self, values: Any, *, are_arrays: bool) -> list[int]:
        """Returns what this process tells the others of its first batch.

        Args:
            values: its checksums; None if it has none.
            are_arrays: True if all that the dataset draws is the order of the rows of arrays.
        """
        origins = self._origins()
        if are_arrays:
            origins = [Origin.DATA] * len(origins)
        return first_batch.message([0] * len(origins) if values is None else values.numpy().tolist(), origins)


class ComparedDataset(UnaryUnchangedStructureDataset):
    """A dataset of as many elements on all processes, which compares the first one when it is asked to.

    Args:
        dataset: of portions.
        checked: the same with checksums.
        agreement: of the processes.
    """

    def __init__(self, dataset: tf.data.Dataset, checked: Checked, agreement: Agreement) -> None:
        super().__init__(dataset, dataset._variant_tensor)
        self._portions = dataset
        self._checked = checked
        self._agreement = agreement
        self._transformations: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []
        self._is_due = self._are_arrays = False

    def compare_next(self, *, are_arrays: bool) -> None:
        """Has the first element of the next iterator compared. All processes call it."""
        self._is_due, self._are_arrays = True, are_arrays

    def apply(self, transformation_func: Callable[[tf.data.Dataset], tf.data.Dataset]) -> ComparedDataset:
        """Returns the same with other elements: what the function makes of them, one by one."""
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
        iterator = iter(_without_prefetch(checked))
        first = next(iterator, None)
        values = None if first is None else first[0]
        mine = self._checked.message(values, are_arrays=self._are_arrays)
        first_batch.judge(self._agreement.gathered("checksums of the first batch", *mine))
        if first is None:
            return checked.map(lambda _, element: element)
        return _rejoined(first, iterator, checked)


def _rejoined(first: Any, iterator: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the first element of pairs and those that the iterator goes on with, as one dataset."""
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

    # The function captures nothing: graphs live until garbage is collected, and an iterator has threads, which it ends
    # the slower, the longer they have run.
    held = iterator._iterator_resource, tuple(tensor_lists.to_tensor_list(spec, first))
    numbers = tf.data.Dataset.range(tf.int64.max if size == tf.data.INFINITE_CARDINALITY else size)
    both = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensors(held).repeat()))
    # Like the portions themselves, none is read before it is asked for.
    return both.map(element, synchronous=True).with_options(dataset.options())


def _without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without the prefetch that TensorFlow would append: it appends one to what follows."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)
