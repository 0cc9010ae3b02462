"""Lines of text that describe the arguments of ``fit``, ``evaluate`` and ``predict``, for the comparison of processes.

Rows themselves are not compared here: they may be large, and are compared when the first batch is drawn
(``batches.first_batch``). But ``dataset.shard`` by rank is found here, in the dataset's transformations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._tf_internals import BatchDataset, ParallelBatchDataset, ShardDataset

#: The arguments that hold rows.
DATA = ("x", "y", "sample_weight")
# Arguments that affect the number of steps, or what happens in or between them.
_SETTINGS = (
    "steps_per_epoch",
    "steps_per_execution",
    "batch_size",
    "shuffle",
    "class_weight",
    "epochs",
    "initial_epoch",
    "validation_split",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
    "steps",
)
# Matches lines about rows.
_OF_DATA = re.compile(rf"\w+\(({'|'.join((*DATA, 'validation_data'))})=")


def describe_call(name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines about the call of a model's method.

    Args:
        name: of the method, with its context, as in "evaluate inside of fit".
        arguments: the arguments that were given, by name.
    """
    x = arguments.get("x")
    for setting in _SETTINGS:
        value = arguments.get(setting)
        if setting == "batch_size" and isinstance(x, tf.data.Dataset):
            value = _batch_size(x)
        # Other values, such as a variable, are compared by type.
        plain = isinstance(value, (bool, int, float, np.number, str, dict, list, type(None)))
        yield f"{name}({setting}={value if plain else type(value).__name__})"
    for part in DATA:
        yield from (f"{name}({part}={text})" for text in _forms(arguments.get(part)))
    forms = [*_forms(arguments.get("validation_data"))] or None
    yield f"{name}(validation_data={forms})"


def is_about_rows(line: str) -> bool:
    """Returns True for a line of `describe_call` about an argument that holds rows."""
    return _OF_DATA.match(line) is not None


def _forms(data: Any) -> Iterator[str]:
    if isinstance(data, tf.data.Dataset):
        yield from _shards(data)
    if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        data = data.element_spec
    for leaf in keras.tree.flatten(data):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if isinstance(leaf, tf.TypeSpec):
            # The numbers of rows may differ if each process reads its own part of a batch.
            yield re.sub(r"shape=\(\d+", "shape=(None", str(leaf))
        elif shape is not None and dtype is not None:
            yield f"{type(leaf).__name__} {tuple(shape)} {dtype}"
        elif leaf is not None:
            yield type(leaf).__name__


def _shards(dataset: tf.data.Dataset) -> Iterator[str]:
    """Yields the ``shard`` transformations of a dataset of global batches; none if processes read data of their own."""
    if not _is_of_global_batches(dataset):
        return
    if isinstance(dataset, ShardDataset):
        numbers = [tf.get_static_value(number) for number in (dataset._num_shards, dataset._index)]
        yield f"dataset.shard({numbers[0]}, {numbers[1]})"
    for before in dataset._inputs():
        yield from _shards(before)


def _is_of_global_batches(dataset: tf.data.Dataset) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy in (tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.DATA)


def _batch_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the batch size of a dataset of global batches, from its transformations; None if unknown."""
    if not _is_of_global_batches(dataset):
        return None
    while not isinstance(dataset, (BatchDataset, ParallelBatchDataset)):
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return None
        (dataset,) = inputs
    size = tf.get_static_value(dataset._batch_size)
    return None if size is None else int(size)
