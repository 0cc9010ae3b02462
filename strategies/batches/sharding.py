"""Shards a dataset among processes: selects the rows that each process reads, and ends all processes together.

There are two plans; rank 0 logs the one that is used:

* **by row**, the default: every process has the same dataset of global batches and keeps its own rows of each. The
  global batches are those of one device. It needs no exchange between processes. Where the pipeline allows it, a
  process selects its rows before they are mapped (``early_selection``); otherwise it maps all rows.
* **its own**: each process' dataset contains its part of every global batch (files sharded by TensorFlow's
  auto-sharding, or the dataset that the user's function made). Parts may have any number of rows and datasets any
  length: processes exchange their numbers of rows at every step, and a process without further rows takes part with
  dummy rows until all datasets have ended. Every example counts exactly once.

If a replica spans several processes, "process" here means all of them together: they get the same dataset.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies._tf_internals import AutoShardDataset, LegacyRebatchDataset, PerReplica, PerReplicaSpec
from strategies.batches import early_selection, first_batch, inputs
from strategies.batches.compared_dataset import Checked, ComparedDataset
from strategies.batches.origins import Origin, origins_of
from strategies.batches.portions import Portion, PortionSpec
from strategies.batches.rows import take_rows
from strategies.collectives.agreement import Agreement

_logger = logging.getLogger(__name__)

_Policy = tf.data.experimental.AutoShardPolicy


def distribute(dataset: Any, agreement: Agreement, num_local: int) -> Any:
    """Shards a dataset of global batches among processes, by the policy in its options.

    Args:
        dataset: the same on all processes. Its ``options().experimental_distribute.auto_shard_policy`` selects the
            plan: AUTO and DATA, by row; FILE and HINT, its own, as TensorFlow shards it; OFF, its own, unchanged.
        agreement: exchanges numbers between the processes.
        num_local: the number of replicas of this process.

    Returns:
        A dataset of :class:`Portion`: a plain ``tf.data.Dataset`` where its end is known to be the same everywhere,
        else an :class:`AgreedDataset`.

    Raises:
        ValueError: on all processes, if the processes of one replica have datasets of different lengths.
    """
    if not isinstance(dataset, tf.data.Dataset) or inputs.is_distributed(dataset):
        return dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy
    num_positions = agreement.num_positions
    if policy in (_Policy.FILE, _Policy.HINT):
        per_process = LegacyRebatchDataset(dataset, num_positions)
        _log_plan(agreement, f"{policy.name}, each of {num_positions} processes reads its own shard")
        return _own(AutoShardDataset(per_process, num_positions, agreement.position), agreement, num_local)
    if policy == _Policy.OFF:
        _log_plan(agreement, "OFF, each process reads all of the dataset that it was given, as its part of every batch")
        return _own(dataset, agreement, num_local)

    first, num_replicas = agreement.position * num_local, num_positions * num_local
    portions = early_selection.select_before_mapping(dataset, first, num_local, num_replicas)
    selects_early = not isinstance(portions, str)
    plan = f"by row, each of {num_positions} processes maps its own rows of every global batch and no others"
    if isinstance(portions, str):
        plan = f"by row, each of {num_positions} processes reads all and keeps its rows of every global "
        plan += f"batch, for {portions}"
        portions = inputs.map_batches(dataset, lambda batch: inputs.portion_out(batch, first, num_local, num_replicas))

    def with_checksums() -> tf.data.Dataset:
        if selects_early:
            return early_selection.select_before_mapping(dataset, first, num_local, num_replicas, with_checksums=True)
        return inputs.with_checksums(dataset, lambda batch: inputs.portion_out(batch, first, num_local, num_replicas))

    def origins() -> list[Origin]:
        return origins_of(early_selection.selected_from(dataset) if selects_early else dataset)

    return ending_together(portions, agreement, plan, Checked(with_checksums, origins))


def ending_together(dataset: tf.data.Dataset, agreement: Agreement, plan: str, checked: Checked | None = None) -> Any:
    """Returns the dataset as one that ends on all processes at the same step.

    Args:
        dataset: this process' own.
        agreement: exchanges numbers between the processes.
        plan: describes how the dataset is sharded, for the log.
        checked: the dataset with checksums, where its first batch can be compared between processes.

    Raises:
        ValueError: on all processes, if the processes of one replica have datasets of different lengths.
    """
    lengths = _lengths(dataset, agreement)
    if tf.data.UNKNOWN_CARDINALITY in lengths:
        plan += (
            "; its length is unknown, so that processes exchange at every step whether they continue. Set it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(number_of_batches))"
        )
    _log_plan(agreement, plan)
    if len(set(lengths)) == 1 and lengths[0] != tf.data.UNKNOWN_CARDINALITY:
        return dataset if checked is None else ComparedDataset(dataset, checked, agreement)
    if tf.data.UNKNOWN_CARDINALITY not in lengths:
        _logger.warning("The processes' datasets have %s batches; all end with the shortest.", lengths)
    return AgreedDataset(dataset, agreement, _known(min, lengths), ends="first", checked=checked)


def distribute_whole(dataset: tf.data.Dataset, agreement: Agreement, num_replicas: int) -> Any:
    """Returns the dataset of global batches of processes that all read all of it, for parts of the same replicas.

    Raises:
        ValueError: on all processes, if they have datasets of different lengths.
    """

    if inputs.is_distributed(dataset):
        return dataset

    def shared(batch: Any) -> Any:
        return inputs.share_out(batch, num_replicas) if num_replicas > 1 else batch

    checked = Checked(lambda: inputs.with_checksums(dataset, shared), lambda: origins_of(dataset))
    distributed = inputs.distribute(dataset, num_replicas)
    return ending_together(distributed, agreement, "all processes read all of it, for one replica", checked)


def distribute_own(dataset: tf.data.Dataset, agreement: Agreement, num_local: int) -> AgreedDataset:
    """Joins datasets that each process made for itself, whose elements are batches of one replica each."""
    _log_plan(agreement, "each process reads the dataset that its function made")
    return _own(dataset, agreement, num_local, batch_per_replica=True)


def _own(
    dataset: tf.data.Dataset, agreement: Agreement, num_local: int, *, batch_per_replica: bool = False
) -> AgreedDataset:
    per_element = 1 if batch_per_replica else num_local

    def portion(batch: Any) -> Any:
        return inputs.portion_out(batch, 0, per_element, per_element)

    together = num_local // per_element
    lengths = [-(-length // together) if length > 0 else length for length in _lengths(dataset, agreement)]
    return AgreedDataset(
        inputs.map_batches(dataset, portion),
        agreement,
        _known(max, lengths),
        ends="last",
        num_together=together,
        # Processes of one replica have the same dataset; others need not.
        checked=Checked(lambda: inputs.with_checksums(dataset, portion), None) if agreement.num_together > 1 else None,
    )


def _lengths(dataset: tf.data.Dataset, agreement: Agreement) -> list[int]:
    """Returns the number of batches at each position of the data axis, as in ``tf.data``."""
    by_position = agreement.exchange("batches, as tf.data counts them", int(dataset.cardinality()))
    return [length for [length] in by_position]


def _known(choose: Callable[[list[int]], int], lengths: list[int]) -> int | None:
    """Returns ``choose(lengths)``, the common number of batches; None if any length is unknown or infinite."""
    return None if min(lengths) < 0 else choose(lengths)


def _log_plan(agreement: Agreement, plan: str) -> None:
    if agreement.job.rank == 0:
        _logger.info("Sharing the dataset out: %s.", plan)


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
    """Returns ``element`` as a dummy, with one row per replica: the process has no rows in this batch."""

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
