"""Turns off the autotuning of ``tf.data`` for datasets that cannot become faster by it.

Each iterator of a dataset that is autotuned has a thread that sleeps between its decisions, for up to 60 seconds. The
iterator's end waits for that thread, and holds Python's global lock meanwhile. TensorFlow 2.21 wakes the thread before
it marks the iterator as cancelled, so that the thread may find nothing to do and sleep on: often where cores are busy,
and once in about a hundred iterators where they are idle. A process that waits so at the end of an epoch delays all
processes of its job.

Stages with ``tf.data.AUTOTUNE`` start with 16 threads, or with all that the dataset has if these are fewer. So
autotuning adds threads to such stages only if there are more, and to ``map`` without ``num_parallel_calls``, which
TensorFlow then runs in parallel. It also limits the memory of ``prefetch(tf.data.AUTOTUNE)`` to half of the host's,
which TensorFlow does not do without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from strategies.batches.pipeline_ops import ops_in
from strategies.topology.cores import usable_cores

# TensorFlow's `GetAutotuneDefaultParallelism`.
_MOST_AT_THE_START = 16

# The functions of these modules select rows, which is little work.
_SELECT_ROWS = ("strategies.", "keras.src.trainers.")

_MAPS = ("MapDataset",)
_PARALLEL = ("ParallelMapDataset", "ParallelInterleaveDataset", "ParallelBatchDataset", "MapAndBatchDataset")


def without_idle_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, not autotuned if no stage of the program gets more threads by it.

    Its elements are the same, and stages with ``tf.data.AUTOTUNE`` keep the number of threads they start with. A
    program's own setting of ``options.autotune.enabled`` stays.
    """
    own = dataset.options()
    if own.autotune.enabled is not None:
        return dataset
    tuned = _MAPS if _num_threads(own) <= _MOST_AT_THE_START else _MAPS + _PARALLEL
    if not _programs_stages(dataset).isdisjoint(tuned):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _num_threads(options: tf.data.Options) -> int:
    given = options.threading.private_threadpool_size or tf.config.threading.get_intra_op_parallelism_threads()
    return given or len(usable_cores())


def _programs_stages(dataset: Any) -> set[str]:
    """Returns the types of the stages that the program has made, and of those that their functions make."""
    found = set[str]()
    for stage in _stages(dataset):
        functions = stage._functions()
        if any(getattr(each._func, "__module__", "").startswith(_SELECT_ROWS) for each in functions):
            continue
        found.add(type(stage).__name__.strip("_"))
        for each in functions:
            if _makes_datasets(each) and hasattr(each.function, "graph"):
                found |= {re.sub(r"V\d+$", "", op) for op in ops_in(each.function)}
    return found


def _stages(dataset: Any) -> Iterator[Any]:
    yield dataset
    for before in dataset._inputs():
        yield from _stages(before)


def _makes_datasets(function: Any) -> bool:
    specs = tf.nest.flatten(function.output_structure)
    return any(isinstance(spec, tf.data.DatasetSpec) for spec in specs)
