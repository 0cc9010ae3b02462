"""The arguments of ``fit``, ``evaluate`` and ``predict``, compared between processes before their first step.

Rows themselves are not compared here: they may be large, and are compared when the first batch is drawn
(``batches.first_batch``). But a shard that a dataset takes by the rank shows in its steps.
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
from strategies.engine.replicated import ReplicatedExtended

_NAMES = ("steps_per_epoch", "batch_size", "shuffle", "class_weight", "steps_per_execution")
#: The arguments that hold rows.
DATA = ("x", "y", "sample_weight")
# Of the call that makes the iterator: what changes the number of steps, or what happens between them.
_OF_CALL = (
    "epochs",
    "initial_epoch",
    "validation_split",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
    "steps",
)

# Lines about rows.
_OF_DATA = re.compile(rf"\w+\(({'|'.join(DATA)})=")

# The arguments of the call that runs, until they are compared.
_call: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("keras_strategies_call", default=None)


@contextlib.contextmanager
def of_call(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the first iterator that is made is compared together with the arguments of its call."""
    token = _call.set(dict(arguments))
    try:
        yield
    finally:
        _call.reset(token)


def compare(engine: ReplicatedExtended, arguments: Mapping[str, Any]) -> None:
    """Compares the arguments of Keras' iterator over an epoch between processes. All of them call it.

    Raises:
        ValueError: on all processes, naming what differs on which rank.
    """
    call = engine.member.position.call or "an epoch"
    asked = _call.get() or {}
    _call.set(None)
    given = {name: asked[name] for name in _OF_CALL if name in asked}
    if "validation_data" in asked:
        given["validation_data"] = [*_forms(asked["validation_data"])] or None
    arguments = {**arguments, **given}
    lines = [f"{call}({line})" for line in _description(arguments)]
    compare_lines(engine, lines, REMEDY if engine.layout.process_group is not None else "", _OF_DATA)


def _description(arguments: Mapping[str, Any]) -> Iterator[str]:
    x = arguments.get("x")
    for name in _NAMES:
        value = arguments.get(name)
        if name == "batch_size" and isinstance(x, tf.data.Dataset):
            value = _batch_size(x)
        # An iterator counts steps in a variable.
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
            # Parts of a batch that processes read for themselves may have other numbers of rows.
            yield re.sub(r"shape=\(\d+", "shape=(None", str(leaf))
        elif shape is not None and dtype is not None:
            yield f"{type(leaf).__name__} {tuple(shape)} {dtype}"
        elif leaf is not None:
            yield type(leaf).__name__


def _shards(dataset: tf.data.Dataset) -> Iterator[str]:
    """Yields the shards that a dataset of global batches takes of others; none if it is the process' own."""
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
    """Returns the batch size of a dataset whose last steps are known; None if it does not show."""
    if not _is_of_global_batches(dataset):
        return None
    while not isinstance(dataset, (BatchDataset, ParallelBatchDataset)):
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return None
        (dataset,) = inputs
    size = tf.get_static_value(dataset._batch_size)
    return None if size is None else int(size)
