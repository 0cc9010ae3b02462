"""Input: gives datasets a length that all processes agree on, and prefetches batches to the devices."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_tf_trainer
from keras.src.trainers import data_adapters, epoch_iterator
from keras.src.trainers.data_adapters import array_data_adapter, py_dataset_adapter, tf_dataset_adapter

from strategies._keras_hooks.wrapping import wrap
from strategies.batches.agreed_dataset import AgreedDataset
from strategies.batches.compared_dataset import ComparedDataset
from strategies.batches.pipeline_ops import reads_generator
from strategies.batches.prefetch import ReadAheadDataset
from strategies.engine.engine import Engine, engine_of
from strategies.engine.seeds import agree_on_random_state


def install() -> None:
    """Wraps Keras' epoch iterator, and the adapters that make datasets for it."""
    wrap(keras_tf_trainer.TFEpochIterator, "__init__", _epoch_iterator, in_step=False)
    wrap(epoch_iterator.EpochIterator, "reset", _reset, in_step=False)
    wrap(data_adapters, "is_tf_dataset", _is_dataset, in_step=False)
    for adapter in (array_data_adapter.ArrayDataAdapter, py_dataset_adapter.PyDatasetAdapter):
        wrap(adapter, "get_tf_dataset", _dataset_of_known_length, in_step=False)


# True while an adapter makes a dataset that will be sharded among processes.
_shared_out: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_shared_out", default=False)


def _epoch_iterator(
    original: Callable[..., None],
    iterator: keras_tf_trainer.TFEpochIterator,
    distribute_strategy: tf.distribute.Strategy | None = None,
    **kwargs: Any,
) -> None:
    engine = engine_of(distribute_strategy)
    is_shared_out = engine is not None and engine.num_processes > 1
    if engine is not None and is_shared_out and isinstance(kwargs.get("x"), keras.utils.PyDataset):
        # Keras shuffles its batches by Python's generator, and its own code mostly uses numpy's.
        agree_on_random_state(engine.process_group)
    token = _shared_out.set(is_shared_out)
    try:
        original(iterator, distribute_strategy, **kwargs)
    finally:
        _shared_out.reset(token)
    if isinstance(iterator._distributed_dataset, (AgreedDataset, ComparedDataset)):
        are_arrays = isinstance(iterator.data_adapter, array_data_adapter.ArrayDataAdapter)
        iterator._distributed_dataset.compare_next(are_arrays=are_arrays)
    if engine is not None and _may_read_ahead(iterator, engine):
        iterator._distributed_dataset = ReadAheadDataset(iterator._distributed_dataset, engine.layout.devices)


def _may_read_ahead(iterator: keras_tf_trainer.TFEpochIterator, engine: Engine) -> bool:
    """Returns True if elements may be prefetched to the devices, before their step.

    False for generators, which the user may continue to read after the last step. With `steps_per_execution`, the steps
    of an execution are then called one after the other, each with an element that is already on its device: inside one
    function, they would draw batches that are copied only when they are needed. Where processes agree on every element,
    the result is the same on all of them.
    """
    dataset = iterator._distributed_dataset
    may = (
        engine.computes_on_gpus
        and isinstance(dataset, (tf.data.Dataset, AgreedDataset))
        and _is_read_by_us_alone(iterator, dataset)
    )
    group = engine.process_group
    if not isinstance(dataset, AgreedDataset):
        return bool(may)
    return int(group.sum([tf.constant(int(may))])[0]) == group.num_processes


def _is_read_by_us_alone(iterator: keras_tf_trainer.TFEpochIterator, dataset: tf.data.Dataset | AgreedDataset) -> bool:
    """Returns True if drawing elements that are then not used has no effect outside of the iterator."""
    adapter = iterator.data_adapter
    if isinstance(adapter, py_dataset_adapter.PyDatasetAdapter):
        # Keras reads it through a generator, to its end once per epoch, unless the user gives `steps_per_epoch`.
        return adapter.num_batches is not None and iterator.steps_per_epoch is None
    is_known = isinstance(adapter, (array_data_adapter.ArrayDataAdapter, tf_dataset_adapter.TFDatasetAdapter))
    return is_known and not reads_generator(getattr(dataset, "dataset", dataset))


def _reset(original: Callable[..., None], iterator: epoch_iterator.EpochIterator) -> None:
    """Sets the job's number of batches: Keras counts those of this process' dataset, and others may have more."""
    original(iterator)
    dataset = getattr(iterator, "_distributed_dataset", None)
    dataset = dataset.dataset if isinstance(dataset, ReadAheadDataset) else dataset
    if isinstance(dataset, AgreedDataset):
        iterator._num_batches = dataset.num_batches


def _is_dataset(original: Callable[[object], bool], value: object) -> bool:
    """Returns True also for `AgreedDataset`: Keras recognizes distributed datasets by TensorFlow's class names."""
    return isinstance(value, AgreedDataset) or bool(original(value))


def _dataset_of_known_length(
    original: Callable[..., tf.data.Dataset], adapter: data_adapters.DataAdapter
) -> tf.data.Dataset:
    """Sets the cardinality of Keras' dataset of arrays, or of a ``PyDataset``, to the length that the adapter knows.

    Without it, processes would have to agree at every step, and Keras would warn at the end of the last epoch.
    """
    dataset = original(adapter)
    length = adapter.num_batches if _shared_out.get() else None
    return dataset if length is None else dataset.apply(tf.data.experimental.assert_cardinality(length))
