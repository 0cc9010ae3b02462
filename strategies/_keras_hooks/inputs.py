"""Input: gives datasets a length that all processes agree on, and prefetches batches to the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks import watching
from strategies._keras_hooks.addresses import (
    ArrayDataAdapter,
    PyDatasetAdapter,
    TFDatasetAdapter,
    TFEpochIterator,
    data_adapters,
)
from strategies._keras_hooks.keras_versions import DRAWS_IN_STEP
from strategies._keras_hooks.subclasses import become
from strategies._keras_hooks.wrapping import wrap
from strategies.batches.agreed_dataset import AgreedDataset
from strategies.batches.compared_dataset import ComparedDataset
from strategies.batches.drawn_dataset import DrawnDataset
from strategies.batches.pipeline_ops import reads_generator
from strategies.batches.prefetch import ReadAheadDataset
from strategies.engine.engine import Engine, engine_of
from strategies.engine.seeds import agree_on_random_state


def install() -> None:
    """Wraps the constructor of Keras' epoch iterator, and its check for datasets."""
    wrap(TFEpochIterator, "__init__", _epoch_iterator, in_step=False)
    wrap(data_adapters, "is_tf_dataset", _is_dataset, in_step=False)


def _epoch_iterator(
    original: Callable[..., None],
    iterator: TFEpochIterator,
    distribute_strategy: tf.distribute.Strategy | None = None,
    **kwargs: Any,
) -> None:
    engine = engine_of(distribute_strategy)
    if distribute_strategy is None or engine is None:
        original(iterator, distribute_strategy, **kwargs)
        return
    become(iterator, DistributedIterator)
    if engine.num_processes > 1 and isinstance(kwargs.get("x"), keras.utils.PyDataset):
        # Keras shuffles its batches by Python's generator, and its own code mostly uses numpy's.
        agree_on_random_state(engine.process_group)
    original(iterator, _Distributing(distribute_strategy, iterator, sets_length=engine.num_processes > 1), **kwargs)
    iterator._distribute_strategy = distribute_strategy
    watching.note_batches(iterator, kwargs.get("x"))
    distributed = iterator._distributed_dataset
    if _may_read_ahead(iterator, engine):
        distributed = engine.waits.clocked(distributed)
        iterator._distributed_dataset = ReadAheadDataset(distributed, engine.layout.devices)
    elif iterator.steps_per_execution == 1 and _is_drawn_ahead(distributed):
        distributed, add_seconds = engine.waits.for_drawing(distributed)
        iterator._distributed_dataset = DrawnDataset(distributed, add_seconds)
    else:
        distributed = iterator._distributed_dataset = engine.waits.clocked(distributed)
    if isinstance(distributed, (AgreedDataset, ComparedDataset)):
        distributed.compare_next(are_arrays=isinstance(iterator.data_adapter, ArrayDataAdapter))


def _is_drawn_ahead(dataset: Any) -> bool:
    """Returns True if batches are drawn before their steps: those of unknown length, and from Keras 3.16 on all.

    Keras 3.16 draws each batch before its step, too, but traces the step for the size of the first batch.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    return not DRAWS_IN_STEP or int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY


def _may_read_ahead(iterator: TFEpochIterator, engine: Engine) -> bool:
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


def _is_read_by_us_alone(iterator: TFEpochIterator, dataset: tf.data.Dataset | AgreedDataset) -> bool:
    """Returns True if drawing elements that are then not used has no effect outside of the iterator."""
    adapter = iterator.data_adapter
    if isinstance(adapter, PyDatasetAdapter):
        # Keras reads it through a generator, to its end once per epoch, unless the user gives `steps_per_epoch`.
        return adapter.num_batches is not None and iterator.steps_per_epoch is None
    is_known = isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter))
    return is_known and not reads_generator(getattr(dataset, "dataset", dataset))


class DistributedIterator(TFEpochIterator):
    """An epoch iterator of one of our strategies."""

    def reset(self) -> None:
        """Sets the job's number of batches: Keras counts those of this process' dataset, and others may have more."""
        super().reset()
        dataset = getattr(self, "_distributed_dataset", None)
        dataset = dataset.dataset if isinstance(dataset, ReadAheadDataset) else dataset
        if isinstance(dataset, AgreedDataset):
            self._num_batches = dataset.num_batches


class _Distributing:
    """A strategy as the constructor of an epoch iterator uses it: distributes its dataset, not measuring its elements.

    Keras' adapter knows the length of arrays and of a ``PyDataset``, and its dataset does not. Without the length,
    processes would have to agree at every step, and Keras would warn at the end of the last epoch.

    Args:
        strategy: the strategy that distributes the dataset.
        iterator: the epoch iterator.
        sets_length: if True, datasets that Keras makes get their length.
    """

    def __init__(self, strategy: tf.distribute.Strategy, iterator: TFEpochIterator, *, sets_length: bool) -> None:
        self._strategy, self._iterator, self._sets_length = strategy, iterator, sets_length

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        """Returns the dataset, distributed."""
        adapter = self._iterator.data_adapter
        if self._sets_length and isinstance(adapter, _ADAPTERS) and adapter.num_batches is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(adapter.num_batches))
        # A program's own strategy may override the method.
        method = type(self._strategy).experimental_distribute_dataset
        if method is not tf.distribute.Strategy.experimental_distribute_dataset:
            return self._strategy.experimental_distribute_dataset(dataset)
        return self._strategy.extended.distribute(dataset)


#: Adapters of data that is no dataset, but has a length.
_ADAPTERS = (ArrayDataAdapter, PyDatasetAdapter)


def _is_dataset(original: Callable[[object], bool], value: object) -> bool:
    """Returns True also for `AgreedDataset`: Keras recognizes distributed datasets by TensorFlow's class names."""
    return isinstance(value, AgreedDataset) or bool(original(value))
