"""Compares the arguments of ``fit``, ``evaluate`` and ``predict`` between processes, before the first step.

Rows themselves are not compared here: they may be large, and are compared when the first batch is drawn
(``batches.first_batch``). But ``dataset.shard`` by rank is found here, in the dataset's transformations.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.comparing import compare as compare_lines
from strategies._tf_internals import BatchDataset, ParallelBatchDataset, ShardDataset
from strategies.batches.first_batch import REMEDY
from strategies.engine.engine import Engine

_NAMES = ("steps_per_epoch", "batch_size", "shuffle", "class_weight", "steps_per_execution")
#: The arguments that hold rows.
DATA = ("x", "y", "sample_weight")
# Arguments, of the call that makes the iterator, which affect the number of steps or what happens between steps.
_OF_CALL = (
    "epochs",
    "initial_epoch",
    "validation_split",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
    "steps",
)

# Matches lines about rows.
_OF_DATA = re.compile(rf"\w+\(({'|'.join(DATA)})=")

# The arguments of the call that runs, until they are compared.
_call: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("keras_strategies_call", default=None)


@contextlib.contextmanager
def comparing_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Context manager: `compare` of the first iterator made in the block also compares these arguments of the call."""
    token = _call.set(dict(arguments))
    try:
        yield
    finally:
        _call.reset(token)


def compare(engine: Engine, arguments: Mapping[str, Any]) -> None:
    """Compares the arguments of Keras' epoch iterator between processes. All processes call it.

    Raises:
        ValueError: arguments differ; raised on all processes, with the differing arguments of each rank.
    """
    call = engine.member.position.call or "an epoch"
    asked = _call.get() or {}
    _call.set(None)
    given = {name: asked[name] for name in _OF_CALL if name in asked}
    if "validation_data" in asked:
        given["validation_data"] = [*_forms(asked["validation_data"])] or None
    arguments = {**arguments, **given}
    lines = [f"{call}({line})" for line in _description(arguments)]
    compare_lines(engine, lines, REMEDY if engine.layout.num_processes > 1 else "", _OF_DATA)


def _description(arguments: Mapping[str, Any]) -> Iterator[str]:
    x = arguments.get("x")
    for name in _NAMES:
        value = arguments.get(name)
        if name == "batch_size" and isinstance(x, tf.data.Dataset):
            value = _batch_size(x)
        # Other values, such as a variable, are compared by type.
        yield f"{name}={value if isinstance(value, (int, bool, str, dict, type(None))) else type(value).__name__}"
    for name in (*_OF_CALL, "validation_data"):
        if name in arguments:
            yield f"{name}={arguments[name]}"
    for name in DATA:
        for text in _forms(arguments.get(name)):
            yield f"{name}={text}"
    if isinstance(x, tf.data.Dataset):
        for shard in _shards(x):
            yield f"x={shard}"


def _forms(data: Any) -> Iterator[str]:
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
