"""Compares the first global batch of a call between processes, and raises an error if it differs.

Each process computes its own rows of a global batch that all of them have. If each process got different rows, as by
``x[rank::size]`` or ``dataset.shard(size, rank)``, then with two processes half of the rows would never be trained,
without any error. So processes exchange checksums of the first batch, once per call, and all reach the same verdict.
Which tensors have to be equal depends on their `Origin`. Processes that hold parts of one replica compute with the same
rows: among them, all tensors have to be equal. Later batches are not compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.batches.origins import Origin
from strategies.batches.row_warnings import DifferenceWarning
from strategies.batches.rows import is_tensor
from strategies.collectives.agreement import Agreement
from strategies.topology.agreement import differences

_RANGE = 2**62
#: The number of checksums of tensors that come from Python. The last one covers all further such tensors, too.
_MAX_PYTHON = 4
#: The number of values that each process sends: a hash of the origins, a checksum of the data, those from Python, and
#: a checksum of all tensors.
NUM_CHECKSUMS = 3 + _MAX_PYTHON
_NOTHING = -1

REMEDY = (
    "Pass the same data, in the same order, on all ranks: each process takes its own rows of every global batch by "
    "itself, so leave out x[rank::size] and dataset.shard(size, rank). Shuffle with the same seed on all ranks "
    "(keras.utils.set_random_seed), and leave deterministic=False out. If each process is to read data of its own, say "
    "so: set options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF in the "
    "options of a tf.data.Dataset, or use strategy.distribute_datasets_from_function."
)
_REFUSAL = (
    "The processes were given different data: the first batch on ranks {ranks} has other rows than that on rank 0. "
    f"{REMEDY} {{received}}"
)
_REFUSAL_IN_REPLICA = (
    "Processes that hold parts of one replica were given different data: the first batch on ranks {ranks} differs from "
    "that on the first rank of their replica. All of them have to be given the same rows, labels and weights, in the "
    "same order: inputs may depend on the position along the mesh axis 'data' (input_context.input_pipeline_id), not "
    "on the rank. Shuffle with a seed, or call keras.utils.set_random_seed with the same number on all ranks. "
    "{received}"
)
_WARNING = (
    "The first batch on ranks {ranks} has other values than that on rank 0 in some of its tensors, and the same in the "
    "rest, as where every process draws random numbers of its own to augment it. Then each global batch is made of "
    "rows of several processes' batches, and numbers are not those of one device: draw from the same seed on all "
    f"ranks, as by keras.utils.set_random_seed. If they are other rows: {REMEDY}"
)


def checksums(element: Any) -> tf.Tensor:
    """Returns a number for each leaf of a batch, int64 ``[leaves]``: dense, ragged or sparse tensors of any dtype."""
    return tf.stack([_checksum(leaf) for leaf in tf.nest.flatten(element)])


def checksums_of_rows(parts: Sequence[tf.data.Dataset]) -> tf.Tensor:
    """Returns a number for each leaf of rows, int64 ``[leaves]``, given one dataset per leaf."""
    return tf.stack([_checksum_of_rows(part) for part in parts])


def _checksum_of_rows(rows: tf.data.Dataset) -> tf.Tensor:
    def added(before: tf.Tensor, *row: Any) -> tf.Tensor:
        return _hashed([tf.strings.as_string(before), *map(_contents, row)])

    return rows.reduce(tf.constant(0, tf.int64), added)


def _checksum(leaf: Any) -> tf.Tensor:
    return _hashed([_contents(leaf)])


def _hashed(texts: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(tf.strings.join(texts, separator="/"), _RANGE)


def _contents(leaf: Any) -> tf.Tensor:
    tensors = [each for each in tf.nest.flatten(leaf, expand_composites=True) if tf.is_tensor(each)]
    return tf.strings.join([tf.constant(""), *(tf.io.serialize_tensor(_comparable(each)) for each in tensors)], "/")


def _comparable(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in (tf.variant, tf.resource):
        return tf.constant(0)
    # Compares only the file names of paths: a file may be in another folder on each machine.
    return tf.strings.regex_replace(tensor, "^.*/", "") if tensor.dtype == tf.string else tensor


def compare(batch: Any, agreement: Agreement) -> None:
    """Compares a global batch, a nest of tensors or arrays, between processes. All processes call it.

    Raises:
        ValueError: on all processes, with the ranks whose batch differs from that of rank 0.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batch) if is_tensor(leaf) or hasattr(leaf, "__array__")]
    values = checksums([leaf if is_tensor(leaf) else tf.convert_to_tensor(leaf) for leaf in leaves])
    mine = message(values.numpy().tolist(), [Origin.DATA] * len(leaves))
    judge(agreement.gathered("checksums of the batch", *mine), agreement.num_together)


def message(values: Sequence[int], origins: Sequence[Origin]) -> list[int]:
    """Returns a process' message about a batch: `NUM_CHECKSUMS` numbers."""

    def joined(numbers: Sequence[int]) -> int:
        return int(_hashed([tf.constant(",".join(map(str, numbers)))])) if numbers else _NOTHING

    python = [value for value, origin in zip(values, origins, strict=True) if origin == Origin.PYTHON]
    if len(python) > _MAX_PYTHON:
        python = [*python[: _MAX_PYTHON - 1], joined(python[_MAX_PYTHON - 1 :])]
    data = [value for value, origin in zip(values, origins, strict=True) if origin == Origin.DATA]
    return [joined(origins), joined(data), *python, *[_NOTHING] * (_MAX_PYTHON - len(python)), joined(values)]


def judge(by_rank: Any, num_together: int = 1) -> None:
    """Raises an error or warns, on all processes alike, if the first batch differs between them.

    Tensors made of data alone have to be equal. Tensors that come from Python may have been augmented there: if none of
    them is equal, the rows are assumed to differ, unless there are also tensors of data alone. Random numbers are not
    compared.

    Args:
        by_rank: the messages of the processes, ``[processes, NUM_CHECKSUMS]``.
        num_together: the number of processes that hold one replica together.

    Raises:
        ValueError: on all processes, with the ranks that have other rows.
    """
    by_rank = np.asarray(by_rank)
    form, data, python, whole = by_rank[:, 0], by_rank[:, 1], by_rank[:, 2:-1], by_rank[:, -1]
    received = differences([[f"a first batch with checksum {value:x}"] for value in whole.tolist()])
    of_replicas = whole.reshape(-1, num_together)
    is_other = (of_replicas != of_replicas[:, :1]).reshape(-1)
    if is_other.any():
        raise ValueError(_REFUSAL_IN_REPLICA.format(ranks=_listed(is_other), received=received))
    if (form != form[0]).any():
        # The pipelines differ, so checksums cannot be compared; the parts that must not differ were compared before.
        return
    others = python != python[0]
    is_other = data != data[0]
    if data[0] == _NOTHING:
        is_other |= others[:, python[0] != _NOTHING].all(axis=1) & others.any(axis=1)
    if is_other.any():
        raise ValueError(_REFUSAL.format(ranks=_listed(is_other), received=received))
    if others.any():
        # Warns on all processes, so that all stop where warnings are errors.
        warnings.warn(_WARNING.format(ranks=_listed(others.any(axis=1))), DifferenceWarning, stacklevel=2)


def _listed(is_other: np.ndarray) -> str:
    return ", ".join(map(str, np.flatnonzero(is_other)))
