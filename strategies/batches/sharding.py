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

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import AutoShardDataset, LegacyRebatchDataset
from strategies.batches import early_selection, inputs
from strategies.batches.agreed_dataset import AgreedDataset
from strategies.batches.compared_dataset import Checked, ComparedDataset
from strategies.batches.origins import Origin, origins_of
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
