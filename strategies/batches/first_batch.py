"""Comparison of the first global batch of a call: all processes have been given the same one, or refuse it.

Each process computes its own rows of a global batch that all of them have. Given other rows, as ``x[rank::size]`` or
``dataset.shard(size, rank)``, half of them would never be trained, without any error. So processes exchange checksums
of the first batch, once for each call, and judge them alike. Which tensors have to be equal depends on their `Origin`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.batches.agreement import Agreement
from strategies.batches.origins import Origin
from strategies.batches.row_warnings import DifferenceWarning
from strategies.batches.rows import is_tensor

_RANGE = 2**62
#: Checksums of tensors that come from Python; those of further ones are one.
_MAX_PYTHON = 4
#: The numbers that each process exchanges: a description of the batch's form, a checksum of its data, and those.
NUM_CHECKSUMS = 2 + _MAX_PYTHON
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
    f"{REMEDY}"
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
    """Returns a number for each leaf of rows, int64 ``[leaves]``, of which each has a dataset of its own."""
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
    # A file may lie in another folder on each machine.
    return tf.strings.regex_replace(tensor, "^.*/", "") if tensor.dtype == tf.string else tensor


def compare(batch: Any, agreement: Agreement) -> None:
    """Compares a global batch, a nest of tensors or arrays, between processes. All of them call it.

    Raises:
        ValueError: on all processes, with the ranks that have another one.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batch) if is_tensor(leaf) or hasattr(leaf, "__array__")]
    values = checksums([leaf if is_tensor(leaf) else tf.convert_to_tensor(leaf) for leaf in leaves])
    mine = message(values.numpy().tolist(), [Origin.DATA] * len(leaves))
    judge(agreement.gathered("checksums of the batch", *mine))


def message(values: Sequence[int], origins: Sequence[Origin]) -> list[int]:
    """Returns what a process tells the others of a batch: `NUM_CHECKSUMS` numbers."""

    def joined(numbers: Sequence[int]) -> int:
        return int(_hashed([tf.constant(",".join(map(str, numbers)))])) if numbers else _NOTHING

    python = [value for value, origin in zip(values, origins, strict=True) if origin == Origin.PYTHON]
    if len(python) > _MAX_PYTHON:
        python = [*python[: _MAX_PYTHON - 1], joined(python[_MAX_PYTHON - 1 :])]
    data = [value for value, origin in zip(values, origins, strict=True) if origin == Origin.DATA]
    return [joined(origins), joined(data), *python, *[_NOTHING] * (_MAX_PYTHON - len(python))]


def judge(by_rank: Any) -> None:
    """Refuses, or warns of, a first batch that differs between processes: alike on all of them.

    What is made of data alone has to be equal. What comes from Python may be augmented there: if nothing of it is
    equal, it is taken for other rows, unless tensors of data alone tell better. Random numbers are not compared.

    Args:
        by_rank: ``[processes, NUM_CHECKSUMS]``, their messages.

    Raises:
        ValueError: on all processes, with the ranks that have other rows.
    """
    by_rank = np.asarray(by_rank)
    form, data, python = by_rank[:, 0], by_rank[:, 1], by_rank[:, 2:]
    if (form != form[0]).any():
        # Their pipelines differ, so that they cannot be compared; what may not differ in them has been compared.
        return
    others = python != python[0]
    is_other = data != data[0]
    if data[0] == _NOTHING:
        is_other |= others[:, python[0] != _NOTHING].all(axis=1) & others.any(axis=1)
    if is_other.any():
        raise ValueError(_REFUSAL.format(ranks=_listed(is_other)))
    if others.any():
        # On all processes, so that none goes on alone where warnings are errors.
        warnings.warn(_WARNING.format(ranks=_listed(others.any(axis=1))), DifferenceWarning, stacklevel=2)


def _listed(is_other: np.ndarray) -> str:
    return ", ".join(map(str, np.flatnonzero(is_other)))
