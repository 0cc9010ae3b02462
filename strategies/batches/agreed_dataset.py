"""Datasets in parts, one part per process, that end on all processes at the same step.

Processes whose datasets have different lengths would wait for each other at the end of the shorter one. So each tells
the others, before each step, if it has a batch, and how many rows that has where these are counted.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies._tf_internals import PerReplica, PerReplicaSpec
from strategies.batches import first_batch
from strategies.batches.compared_dataset import Checked
from strategies.batches.portions import Portion, PortionSpec
from strategies.batches.rows import take_rows
from strategies.collectives.agreement import Agreement

_logger = logging.getLogger(__name__)


class AgreedDataset(tf.distribute.DistributedDataset):
    """A dataset of this process' portions; at every step, the processes agree on whether it has ended.

    Iterate it eagerly, on all processes alike, as Keras' trainer does.

    Args:
        dataset: elements are nests of :class:`Portion`; with ``ends="first"``, any.
        agreement: exchanges numbers between the processes.
        num_batches: the number of batches that will come; None if unknown.
        ends: "first": it ends as soon as one process' dataset ends; elements are parts of one global batch. "last": it
            ends when all have ended; each process counts its own rows, and takes part without rows after its own end.
        num_together: the number of elements that make one step.
        checked: the dataset with checksums, where its first batch can be compared between processes.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        agreement: Agreement,
        num_batches: int | None,
        *,
        ends: Literal["first", "last"],
        num_together: int = 1,
        checked: Checked | None = None,
    ) -> None:
        self.num_batches = num_batches
        self.dataset = dataset
        self._agreement = agreement
        self._ends = ends
        self._num_together = num_together
        self._checked = checked
        self._transformations: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []
        self._is_due = self._are_arrays = False

    def compare_next(self, *, are_arrays: bool) -> None:
        """Requests that the first element of the next iterator be compared, if it can be. All processes call it."""
        self._is_due, self._are_arrays = self._checked is not None, are_arrays

    @property
    def element_spec(self) -> Any:
        """The nest of specs of an element."""
        return tf.nest.map_structure(lambda spec: _repeated(spec, self._num_together), self.dataset.element_spec)

    def cardinality(self) -> int:
        """Returns the number of batches, as in ``tf.data``."""
        return tf.data.UNKNOWN_CARDINALITY if self.num_batches is None else self.num_batches

    def apply(self, transformation: Callable[[tf.data.Dataset], tf.data.Dataset]) -> AgreedDataset:
        """Returns a copy with ``transformation`` applied to this process' dataset of portions."""
        applied = copy.copy(self)
        applied.dataset = transformation(self.dataset)
        applied._transformations = [*self._transformations, transformation]
        return applied

    def __iter__(self) -> AgreedIterator:
        arguments = (self.element_spec, self._agreement, self._ends, self._num_together)
        if not self._is_due or self._checked is None:
            return AgreedIterator(self.dataset, *arguments)
        self._is_due = False
        dataset = self._checked.dataset()
        for transformation in self._transformations:
            dataset = dataset.apply(transformation)
        return AgreedIterator(dataset, *arguments, self._checked, are_arrays=self._are_arrays)


class AgreedIterator:
    """Iterates over an :class:`AgreedDataset`. With ``checked``, ``dataset`` yields pairs of checksums and elements."""

    def __init__(
        self,
        dataset: tf.data.Dataset,
        element_spec: Any,
        agreement: Agreement,
        ends: str,
        num_together: int,
        checked: Checked | None = None,
        *,
        are_arrays: bool = False,
    ) -> None:
        self.element_spec = element_spec
        self._part_spec = dataset.element_spec if checked is None else dataset.element_spec[1]
        self._iterator = iter(dataset)
        self._agreement = agreement
        self._ends = ends
        self._num_together = num_together
        self._last: Any = None
        self._checked = checked
        self._are_arrays = are_arrays
        self._is_first, self._checksums = True, None

    def __iter__(self) -> AgreedIterator:
        return self

    def __next__(self) -> Any:
        parts = [self._draw() for _ in range(self._num_together)]
        have_more = any(part is not None for part in parts)
        mine = 0 if self._ends == "first" else sum(_num_own(part) for part in parts if part is not None)
        by_position, first = self._exchange_state(have_more, mine)
        num_having = sum(having for having, _ in by_position)
        if num_having == 0 or (self._ends == "first" and num_having < len(by_position)):
            if have_more:
                _logger.warning(
                    "Process %d has batches left: another process' dataset ended.", self._agreement.job.rank
                )
            raise StopIteration
        if first is not None:
            first_batch.judge(first, self._agreement.num_together)
        if self._ends == "first":
            return parts[0]
        parts = [_nothing(self._like()) if part is None else part for part in parts]
        return _merged(parts, tf.constant(sum(rows for _, rows in by_position)), self.element_spec)

    def _exchange_state(self, have_more: bool, mine: int) -> tuple[list[list[int]], Any]:
        """Returns the numbers at each position, and all messages by rank for a first batch to compare, else None."""
        what, numbers = "1 for a batch or 0 for the end, and its rows if they are counted", [int(have_more), mine]
        if self._checked is None or not self._is_first:
            return self._agreement.exchange(what, *numbers), None
        self._is_first = False
        checksums = self._checked.message(self._checksums, are_arrays=self._are_arrays)
        by_rank = self._agreement.gathered(what, *numbers, *checksums)
        by_position = self._agreement.by_position(what, [each[:2] for each in by_rank])
        return by_position, [each[2:] for each in by_rank]

    def _draw(self) -> Any:
        """Returns the next element, or with ``ends="last"`` the next element that has rows; None at the end."""
        for element in self._iterator:
            if self._checked is not None:
                checksums, element = element
                if self._is_first and self._checksums is None:
                    self._checksums = checksums
            if self._ends == "first" or _num_own(element):
                self._last = element
                return element
        return None

    def _like(self) -> Any:
        return self._spec_element() if self._last is None else self._last

    def _spec_element(self) -> Any:
        """Returns a dummy element, one row of zeros, for a process whose dataset is empty."""

        def zeros(spec: Any) -> Any:
            if not isinstance(spec, PortionSpec):
                return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec, expand_composites=True)
            values = tuple(tf.zeros([size or 1 for size in s.shape], s.dtype) for s in spec.value_specs)
            return Portion(values, tf.zeros([len(values)], tf.int32), tf.zeros([], tf.int32))

        return tf.nest.map_structure(zeros, self._part_spec)


def _num_own(element: Any) -> int:
    portions = [leaf for leaf in tf.nest.flatten(element) if isinstance(leaf, Portion)]
    return int(tf.reduce_sum(portions[0].num_own))


def _nothing(element: Any) -> Any:
    """Returns a dummy like ``element``, with one row per replica, for a process without rows in this batch."""

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, Portion):
            return leaf
        values = tuple(take_rows(value, 0, 1) for value in leaf.values)
        return Portion(values, tf.zeros_like(leaf.num_own), leaf.num_all)

    return tf.nest.map_structure(empty, element)


def _merged(parts: Sequence[Any], total: tf.Tensor, element_spec: Any) -> Any:
    """Merges the elements of several local replicas into one, whose global batch has ``total`` rows."""

    def merge(spec: Any, *leaves: Any) -> Any:
        if not isinstance(leaves[0], PerReplica):
            return leaves[0]
        values = tuple(value for leaf in leaves for value in leaf.values)
        if not isinstance(leaves[0], Portion):
            return PerReplica(values)
        return Portion(values, tf.concat([leaf.num_own for leaf in leaves], axis=0), total, spec=spec)

    return tf.nest.map_structure(merge, element_spec, *parts)


def _repeated(spec: Any, count: int) -> Any:
    """Returns the type of ``count`` per-replica values merged into one; the numbers of rows are not static."""
    if isinstance(spec, PortionSpec):
        return PortionSpec(*(spec.value_specs * count))
    return PerReplicaSpec(*(spec._value_specs * count)) if isinstance(spec, PerReplicaSpec) else spec
