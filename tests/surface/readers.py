"""The readers of the third grid: whatever Keras' `fit`, `evaluate` and `predict` read batches from."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

#: Makes the arguments of `fit` that an epoch reads, from a batch on: x, y, batch_size, steps_per_epoch, shuffle.
Make = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Reader:
    """A thing to read batches from.

    Attributes:
        adapter: the class of Keras that reads it.
        make: the arguments of `fit`.
        inputs: the kind of the model's inputs, one of `reading.MODELS`.
        needs: a package that has to be installed for it.
        fixed: why it cannot be made from a batch on; empty if it can.
    """

    adapter: str
    make: Make
    inputs: str = "dense"
    needs: str = ""
    fixed: str = ""

    @property
    def is_installed(self) -> bool:
        """False if a package is missing."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def _arrays(convert: Callable[[np.ndarray], Any] = np.asarray, **further: Any) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        return {"x": convert(X[rows]), "y": convert(Y[rows]), "batch_size": BATCH_SIZE, "shuffle": False, **further}

    return make


def _array_inputs(x_of: Callable[[slice], Any], *, weighted: bool = False) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        weights = {"sample_weight": WEIGHTS[rows]} if weighted else {}
        return {"x": x_of(rows), "y": Y[rows], "batch_size": BATCH_SIZE, "shuffle": False, **weights}

    return make


def _two(rows: slice) -> dict[str, np.ndarray]:
    return {"first": X[rows], "second": SECOND[rows]}


def _csr(rows: slice) -> Any:
    return importlib.import_module("scipy.sparse").csr_array(SPARSE[rows])


def _frame(values: np.ndarray) -> Any:
    return importlib.import_module("pandas").DataFrame(values)


def _torch_tensor(values: np.ndarray) -> Any:
    return importlib.import_module("torch").tensor(values)


def _rows(first: int) -> tf.data.Dataset:
    rows = rows_from(first)
    return tf.data.Dataset.from_tensor_slices((X[rows], Y[rows]))


def _dataset(change: Callable[[tf.data.Dataset], Any], *, endless: bool = False) -> Make:
    """Of a dataset of rows, which is changed into one of batches."""

    def make(first: int) -> dict[str, Any]:
        steps = {"steps_per_epoch": NUM_BATCHES - first} if endless else {}
        return {"x": change(_rows(first)), **steps}

    return make


def _batches_dataset(x_of: Callable[[slice], Any], *, weighted: bool = False) -> Make:
    def make(first: int) -> dict[str, Any]:
        rows = rows_from(first)
        parts = (x_of(rows), Y[rows], WEIGHTS[rows]) if weighted else (x_of(rows), Y[rows])
        return {"x": tf.data.Dataset.from_tensor_slices(parts).batch(BATCH_SIZE)}

    return make


def _interleaved(rows: tf.data.Dataset) -> tf.data.Dataset:
    """Two readers whose rows come in turns, and a map that runs in parallel."""
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
    """A dispatcher and a worker of tf.data's service, which end with the process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address, heartbeat_interval_ms=100))
    return dispatcher, worker


def _served(rows: tf.data.Dataset) -> tf.data.Dataset:
    dispatcher, _ = _service()
    served = tf.data.experimental.service.distribute(processing_mode="parallel_epochs", service=dispatcher.target)
    return rows.batch(BATCH_SIZE).apply(served)


def _from_generator(rows: tf.data.Dataset) -> tf.data.Dataset:
    batches = rows.batch(BATCH_SIZE)
    spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2]))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def _distributed(rows: tf.data.Dataset) -> Any:
    """The dataset that the strategy of the scope makes."""
    return tf.distribute.get_strategy().experimental_distribute_dataset(rows.batch(BATCH_SIZE))


class Batches(keras.utils.PyDataset):
    """The batches of an epoch, from one on."""

    def __init__(self, first: int, of: Callable[[slice], Any], num_batches: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first, self._of, self._num_batches = first, of, num_batches

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None if they never end."""
        return self._num_batches

    def __getitem__(self, index: int) -> Any:
        return self._of(batch_of((self._first + index) % NUM_BATCHES))


def _pair(rows: slice) -> tuple[np.ndarray, np.ndarray]:
    return X[rows], Y[rows]


def _pair_of_two(rows: slice) -> tuple[Any, np.ndarray]:
    return _two(rows), Y[rows]


def _triple(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return X[rows], Y[rows], WEIGHTS[rows]


def _sparse_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return sparse(rows), Y[rows]


def _csr_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return _csr(rows), Y[rows]


def _ragged_pair(rows: slice) -> tuple[Any, np.ndarray]:
    return ragged(rows), Y[rows]


def _py_dataset(
    of: Callable[[slice], Any] = _pair, *, endless: bool = False, shuffle: bool = False, **settings: Any
) -> Make:
    def make(first: int) -> dict[str, Any]:
        count = NUM_BATCHES - first
        steps = {"steps_per_epoch": count} if endless else {}
        return {"x": Batches(first, of, None if endless else count, **settings), "shuffle": shuffle, **steps}

    return make


def _generator(of: Callable[[slice], Any]) -> Make:
    """A generator that never ends; it is drawn from further in each epoch."""

    def endless(index: int) -> Iterator[Any]:
        while True:
            yield of(batch_of(index % NUM_BATCHES))
            index += 1

    return lambda first: {"x": endless(first), "steps_per_epoch": NUM_BATCHES - first}


class GrainRows:
    """Rows that Grain's loaders look up by their number."""

    def __init__(self, first: int) -> None:
        self._first = BATCH_SIZE * first

    def __len__(self) -> int:
        return NUM_ROWS - self._first

    def __getitem__(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        return X[self._first + int(index)], Y[self._first + int(index)]


def _grain_map(first: int) -> Any:
    return importlib.import_module("grain").MapDataset.source(GrainRows(first)).batch(BATCH_SIZE)


def _grain_loader(first: int, **settings: Any) -> Any:
    grain = importlib.import_module("grain")
    source = GrainRows(first)
    sampler = grain.samplers.IndexSampler(len(source), num_epochs=1, shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(BATCH_SIZE)], **settings
    )


def _grain_endless(first: int) -> dict[str, Any]:
    """The batches again and again; the position of its iterator is a number of batches."""
    whole = _grain_map(0).repeat()
    return {"x": whole[first:].to_iter_dataset(), "steps_per_epoch": NUM_BATCHES - first}


def _torch_loader(first: int, **settings: Any) -> Any:
    data = importlib.import_module("torch.utils.data")
    rows = rows_from(first)
    pairs = data.TensorDataset(_torch_tensor(X[rows]), _torch_tensor(Y[rows]))
    return data.DataLoader(pairs, batch_size=BATCH_SIZE, **settings)


def _torch_stream(first: int) -> Any:
    data = importlib.import_module("torch.utils.data")

    class Stream(data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            rows = rows_from(first)
            return iter(zip(_torch_tensor(X[rows]), _torch_tensor(Y[rows]), strict=True))

    return data.DataLoader(Stream(), batch_size=BATCH_SIZE)


def _only(make: Callable[[int], Any]) -> Make:
    return lambda first: {"x": make(first)}


_ARRAYS, _TF_DATA, _PY_DATASET = "ArrayDataAdapter", "TFDatasetAdapter", "PyDatasetAdapter"
_GENERATOR, _GRAIN, _TORCH = "GeneratorDataAdapter", "GrainDatasetAdapter", "TorchDataLoaderAdapter"
_DRAWN = "its order is drawn, and neither Keras nor the program can begin within it"

READERS: Mapping[str, Reader] = {
    "numpy": Reader(_ARRAYS, _arrays()),
    "numpy, shuffled": Reader(_ARRAYS, _arrays(shuffle=True), fixed=_DRAWN),
    "numpy, two inputs, weights": Reader(_ARRAYS, _array_inputs(_two, weighted=True), inputs="two"),
    "tf.Tensor": Reader(_ARRAYS, _arrays(tf.constant)),
    "tf.SparseTensor": Reader(_ARRAYS, _array_inputs(sparse), inputs="sparse"),
    "tf.RaggedTensor": Reader(_ARRAYS, _array_inputs(ragged), inputs="ragged"),
    "scipy csr": Reader(_ARRAYS, _array_inputs(_csr), inputs="sparse", needs="scipy"),
    "pandas": Reader(_ARRAYS, _arrays(_frame), needs="pandas"),
    "torch.Tensor": Reader(_ARRAYS, _arrays(_torch_tensor), needs="torch"),
    "tf.data": Reader(_TF_DATA, _dataset(lambda rows: rows.batch(BATCH_SIZE))),
    "tf.data, unbatched": Reader(_TF_DATA, _dataset(lambda rows: rows)),
    "tf.data, mapped after batch": Reader(
        _TF_DATA, _dataset(lambda rows: rows.batch(BATCH_SIZE).map(lambda x, y: (x - 1.0, y)).prefetch(2))
    ),
    "tf.data, interleaved": Reader(_TF_DATA, _dataset(_interleaved), fixed="rows from a batch on come in other turns"),
    "tf.data, shuffled": Reader(
        _TF_DATA, _dataset(lambda rows: rows.shuffle(NUM_ROWS, seed=3).batch(BATCH_SIZE)), fixed=_DRAWN
    ),
    "tf.data, shuffled alike": Reader(
        _TF_DATA,
        lambda first: {
            "x": _rows(0).shuffle(NUM_ROWS, seed=3, reshuffle_each_iteration=False).batch(BATCH_SIZE).skip(first)
        },
    ),
    "tf.data, repeated": Reader(_TF_DATA, lambda first: {
        "x": _rows(0).batch(BATCH_SIZE).repeat().skip(first), "steps_per_epoch": NUM_BATCHES - first
    }),
    "tf.data, of unknown length": Reader(
        _TF_DATA, _dataset(lambda rows: rows.batch(BATCH_SIZE).filter(lambda x, y: True))
    ),
    "tf.data, from_generator": Reader(_TF_DATA, _dataset(_from_generator)),
    "tf.data, service": Reader(_TF_DATA, _dataset(_served)),
    "tf.data, distributed": Reader(_TF_DATA, _dataset(_distributed)),
    "tf.data, two inputs, weights": Reader(_TF_DATA, _batches_dataset(_two, weighted=True), inputs="two"),
    "tf.data, sparse": Reader(_TF_DATA, _batches_dataset(sparse), inputs="sparse"),
    "tf.data, ragged": Reader(_TF_DATA, _batches_dataset(ragged), inputs="ragged"),
    "PyDataset": Reader(_PY_DATASET, _py_dataset()),
    "PyDataset, no workers": Reader(_PY_DATASET, _py_dataset(workers=0)),
    "PyDataset, threads": Reader(_PY_DATASET, _py_dataset(workers=2)),
    "PyDataset, processes": Reader(_PY_DATASET, _py_dataset(workers=2, use_multiprocessing=True, max_queue_size=2)),
    "PyDataset, shuffled": Reader(_PY_DATASET, _py_dataset(shuffle=True), fixed=_DRAWN),
    "PyDataset, shuffled, threads": Reader(_PY_DATASET, _py_dataset(shuffle=True, workers=2), fixed=_DRAWN),
    "PyDataset, endless": Reader(_PY_DATASET, _py_dataset(endless=True)),
    "PyDataset, endless, threads": Reader(_PY_DATASET, _py_dataset(endless=True, workers=2)),
    "PyDataset, weights": Reader(_PY_DATASET, _py_dataset(_triple)),
    "PyDataset, two inputs": Reader(_PY_DATASET, _py_dataset(_pair_of_two), inputs="two"),
    "PyDataset, sparse": Reader(_PY_DATASET, _py_dataset(_sparse_pair), inputs="sparse"),
    "PyDataset, ragged": Reader(_PY_DATASET, _py_dataset(_ragged_pair), inputs="ragged"),
    "generator": Reader(_GENERATOR, _generator(_pair)),
    "generator, weights": Reader(_GENERATOR, _generator(_triple)),
    "generator, two inputs": Reader(_GENERATOR, _generator(_pair_of_two), inputs="two"),
    "generator, scipy csr": Reader(_GENERATOR, _generator(_csr_pair), inputs="sparse", needs="scipy"),
    "generator, ragged": Reader(_GENERATOR, _generator(_ragged_pair), inputs="ragged"),
    "grain.MapDataset": Reader(_GRAIN, _only(_grain_map), needs="grain"),
    "grain.IterDataset": Reader(_GRAIN, _only(lambda first: _grain_map(first).to_iter_dataset()), needs="grain"),
    "grain.IterDataset, repeated": Reader(_GRAIN, _grain_endless, needs="grain"),
    "grain.DataLoader": Reader(_GRAIN, _only(_grain_loader), needs="grain"),
    "torch DataLoader": Reader(_TORCH, _only(_torch_loader), needs="torch"),
    # One that is forked from a process with threads, as by default, dies at times, in plain Keras, too.
    "torch DataLoader, processes": Reader(
        _TORCH,
        _only(lambda first: _torch_loader(first, num_workers=1, multiprocessing_context="spawn")),
        needs="torch",
    ),
    "torch DataLoader, stream": Reader(_TORCH, _only(_torch_stream), needs="torch"),
}

#: Those that `make test` runs over two processes.
SAMPLE = (
    "tf.data, interleaved",
    "tf.data, of unknown length",
    "PyDataset, threads",
    "PyDataset, shuffled",
    "generator",
    "grain.IterDataset, repeated",
)


def adapters() -> set[str]:
    """Returns the names of the classes by which Keras reads, found by walking its modules."""
    package = importlib.import_module("keras.src.trainers.data_adapters")
    base = importlib.import_module("keras.src.trainers.data_adapters.data_adapter").DataAdapter
    found: set[str] = set()
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("_test"):
            values = vars(importlib.import_module(module.name)).values()
            found |= {v.__name__ for v in values if isinstance(v, type) and issubclass(v, base) and v is not base}
    return found


def without_readers() -> set[str]:
    """Returns the adapters of Keras that no reader covers."""
    return adapters() - {reader.adapter for reader in READERS.values()}
