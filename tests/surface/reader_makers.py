"""Makes readers of input that start at a given batch of an epoch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.surface.reading import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_ROWS,
    SECOND,
    SPARSE,
    WEIGHTS,
    X,
    Y,
    batch_of,
    ragged,
    rows_from,
    sparse,
)

#: Makes the arguments of `fit` for an epoch from a given batch on: x, y, batch_size, steps_per_epoch, shuffle.
Make = Callable[[int], dict[str, Any]]


def arrays(convert: Callable[[np.ndarray], Any] = np.asarray, **further: Any) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        return {"x": convert(X[rows]), "y": convert(Y[rows]), "batch_size": BATCH_SIZE, "shuffle": False, **further}

    return make


def array_inputs(x_of: Callable[[slice], Any], *, weighted: bool = False) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        weights = {"sample_weight": WEIGHTS[rows]} if weighted else {}
        return {"x": x_of(rows), "y": Y[rows], "batch_size": BATCH_SIZE, "shuffle": False, **weights}

    return make


def two(rows: slice) -> dict[str, np.ndarray]:
    return {"first": X[rows], "second": SECOND[rows]}


def csr(rows: slice) -> Any:
    return importlib.import_module("scipy.sparse").csr_array(SPARSE[rows])


def frame(values: np.ndarray) -> Any:
    return importlib.import_module("pandas").DataFrame(values)


def torch_tensor(values: np.ndarray) -> Any:
    return importlib.import_module("torch").tensor(values)


def dataset_of_rows(first: int) -> tf.data.Dataset:
    rows = rows_from(first)
    return tf.data.Dataset.from_tensor_slices((X[rows], Y[rows]))


def dataset(change: Callable[[tf.data.Dataset], Any], *, endless: bool = False) -> Make:
    """Returns a maker of a dataset: `change` turns a dataset of rows into one of batches."""

    def make(first: int) -> dict[str, Any]:
        steps = {"steps_per_epoch": NUM_BATCHES - first} if endless else {}
        return {"x": change(dataset_of_rows(first)), **steps}

    return make


def batches_dataset(x_of: Callable[[slice], Any], *, weighted: bool = False) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        parts = (x_of(rows), Y[rows], WEIGHTS[rows]) if weighted else (x_of(rows), Y[rows])
        return {"x": tf.data.Dataset.from_tensor_slices(parts).batch(BATCH_SIZE)}

    return make


def interleaved(rows: tf.data.Dataset) -> tf.data.Dataset:
    """Returns batches of two interleaved readers, with a map that runs in parallel."""
    count = int(rows.cardinality())
    halves = tf.data.Dataset.range(2).interleave(
        lambda i: rows.skip(i * (count // 2)).take(count - count // 2),
        cycle_length=2,
        num_parallel_calls=2,
        deterministic=True,
    )
    scaled = halves.map(lambda x, y: (2.0 * x, y), num_parallel_calls=2)
    return scaled.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


@functools.cache
def _service() -> tuple[Any, Any]:
    """Returns a dispatcher and a worker of tf.data's service, which end with the process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address, heartbeat_interval_ms=100))
    return dispatcher, worker


def served(rows: tf.data.Dataset) -> tf.data.Dataset:
    dispatcher, _ = _service()
    served = tf.data.experimental.service.distribute(processing_mode="parallel_epochs", service=dispatcher.target)
    return rows.batch(BATCH_SIZE).apply(served)


def from_generator(rows: tf.data.Dataset) -> tf.data.Dataset:
    batches = rows.batch(BATCH_SIZE)
    spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2]))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def distributed(rows: tf.data.Dataset) -> Any:
    """Returns the dataset that the strategy of the scope distributes."""
    return tf.distribute.get_strategy().experimental_distribute_dataset(rows.batch(BATCH_SIZE))


class Batches(keras.utils.PyDataset):
    """The batches of an epoch, from a given one on."""

    def __init__(self, first: int, read: Callable[[slice], Any], num_batches: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first, self._read, self._num_batches = first, read, num_batches

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None if endless."""
        return self._num_batches

    def __getitem__(self, index: int) -> Any:
        return self._read(batch_of((self._first + index) % NUM_BATCHES))


def pair(rows: slice) -> tuple[np.ndarray, np.ndarray]:
    return X[rows], Y[rows]


def pair_of_two(rows: slice) -> tuple[Any, np.ndarray]:
    return two(rows), Y[rows]


def triple(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return X[rows], Y[rows], WEIGHTS[rows]


def sparse_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return sparse(rows), Y[rows]


def csr_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return csr(rows), Y[rows]


def ragged_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return ragged(rows), Y[rows]


def py_dataset(
    read: Callable[[slice], Any] = pair, *, endless: bool = False, shuffle: bool = False, **settings: Any
) -> Make:
    def make(first: int) -> dict[str, Any]:
        count = NUM_BATCHES - first
        steps = {"steps_per_epoch": count} if endless else {}
        return {"x": Batches(first, read, None if endless else count, **settings), "shuffle": shuffle, **steps}

    return make


def generator(read: Callable[[slice], Any]) -> Make:
    """Returns a maker of an endless generator; each epoch continues where the previous one stopped."""

    def endless(index: int) -> Iterator[Any]:
        while True:
            yield read(batch_of(index % NUM_BATCHES))
            index += 1

    return lambda first: {"x": endless(first), "steps_per_epoch": NUM_BATCHES - first}


class GrainRows:
    """Rows that Grain's loaders index by number."""

    def __init__(self, first: int) -> None:
        self._first = BATCH_SIZE * first

    def __len__(self) -> int:
        return NUM_ROWS - self._first

    def __getitem__(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        return X[self._first + int(index)], Y[self._first + int(index)]


def grain_map(first: int) -> Any:
    return importlib.import_module("grain").MapDataset.source(GrainRows(first)).batch(BATCH_SIZE)


def grain_loader(first: int, **settings: Any) -> Any:
    grain = importlib.import_module("grain")
    source = GrainRows(first)
    sampler = grain.samplers.IndexSampler(len(source), num_epochs=1, shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(BATCH_SIZE)], **settings
    )


def grain_endless(first: int) -> dict[str, Any]:
    """Returns endlessly repeated batches; the position of the iterator is a number of batches."""
    whole = grain_map(0).repeat()
    return {"x": whole[first:].to_iter_dataset(), "steps_per_epoch": NUM_BATCHES - first}


def torch_loader(first: int, **settings: Any) -> Any:
    data = importlib.import_module("torch.utils.data")
    rows = rows_from(first)
    pairs = data.TensorDataset(torch_tensor(X[rows]), torch_tensor(Y[rows]))
    return data.DataLoader(pairs, batch_size=BATCH_SIZE, **settings)


def torch_stream(first: int) -> Any:
    data = importlib.import_module("torch.utils.data")

    class Stream(data.IterableDataset):  # type: ignore[name-defined]
        def __iter__(self) -> Iterator[Any]:
            rows = rows_from(first)
            return iter(zip(torch_tensor(X[rows]), torch_tensor(Y[rows]), strict=True))

    return data.DataLoader(Stream(), batch_size=BATCH_SIZE)


def only(make: Callable[[int], Any]) -> Make:
    return lambda first: {"x": make(first)}
