"""The readers of the third grid: everything from which Keras' `fit`, `evaluate` and `predict` read batches."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from tests.surface import reader_makers as made
from tests.surface.reader_makers import Make
from tests.surface.reading import BATCH_SIZE, NUM_BATCHES, NUM_ROWS, ragged, sparse


@dataclass(frozen=True)
class Reader:
    """A source of batches.

    Attributes:
        adapter: the class of Keras that reads it.
        make: makes the arguments of `fit`.
        inputs: the kind of the model's inputs, one of `reading.MODELS`.
        needs: a package that has to be installed for it.
        fixed: the reason why it cannot start at a given batch; empty if it can.
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


_ARRAYS, _TF_DATA, _PY_DATASET = "ArrayDataAdapter", "TFDatasetAdapter", "PyDatasetAdapter"
_GENERATOR, _GRAIN, _TORCH = "GeneratorDataAdapter", "GrainDatasetAdapter", "TorchDataLoaderAdapter"
_DRAWN = "its order is drawn, and neither Keras nor the program can begin within it"

READERS: Mapping[str, Reader] = {
    "numpy": Reader(_ARRAYS, made.arrays()),
    "numpy, shuffled": Reader(_ARRAYS, made.arrays(shuffle=True), fixed=_DRAWN),
    "numpy, two inputs, weights": Reader(_ARRAYS, made.array_inputs(made.two, weighted=True), inputs="two"),
    "tf.Tensor": Reader(_ARRAYS, made.arrays(tf.constant)),
    "tf.SparseTensor": Reader(_ARRAYS, made.array_inputs(sparse), inputs="sparse"),
    "tf.RaggedTensor": Reader(_ARRAYS, made.array_inputs(ragged), inputs="ragged"),
    "scipy csr": Reader(_ARRAYS, made.array_inputs(made.csr), inputs="sparse", needs="scipy"),
    "pandas": Reader(_ARRAYS, made.arrays(made.frame), needs="pandas"),
    "torch.Tensor": Reader(_ARRAYS, made.arrays(made.torch_tensor), needs="torch"),
    "tf.data": Reader(_TF_DATA, made.dataset(lambda rows: rows.batch(BATCH_SIZE))),
    "tf.data, unbatched": Reader(_TF_DATA, made.dataset(lambda rows: rows)),
    "tf.data, mapped after batch": Reader(
        _TF_DATA, made.dataset(lambda rows: rows.batch(BATCH_SIZE).map(lambda x, y: (x - 1.0, y)).prefetch(2))
    ),
    "tf.data, interleaved": Reader(
        _TF_DATA, made.dataset(made.interleaved), fixed="rows from a batch on come in other turns"
    ),
    "tf.data, shuffled": Reader(
        _TF_DATA, made.dataset(lambda rows: rows.shuffle(NUM_ROWS, seed=3).batch(BATCH_SIZE)), fixed=_DRAWN
    ),
    "tf.data, shuffled alike": Reader(
        _TF_DATA,
        lambda first: {
            "x": made.dataset_of_rows(0)
            .shuffle(NUM_ROWS, seed=3, reshuffle_each_iteration=False)
            .batch(BATCH_SIZE)
            .skip(first)
        },
    ),
    "tf.data, repeated": Reader(
        _TF_DATA,
        lambda first: {
            "x": made.dataset_of_rows(0).batch(BATCH_SIZE).repeat().skip(first),
            "steps_per_epoch": NUM_BATCHES - first,
        },
    ),
    "tf.data, of unknown length": Reader(
        _TF_DATA, made.dataset(lambda rows: rows.batch(BATCH_SIZE).filter(lambda x, y: True))
    ),
    "tf.data, from_generator": Reader(_TF_DATA, made.dataset(made.from_generator)),
    "tf.data, service": Reader(_TF_DATA, made.dataset(made.served)),
    "tf.data, distributed": Reader(_TF_DATA, made.dataset(made.distributed)),
    "tf.data, two inputs, weights": Reader(_TF_DATA, made.batches_dataset(made.two, weighted=True), inputs="two"),
    "tf.data, sparse": Reader(_TF_DATA, made.batches_dataset(sparse), inputs="sparse"),
    "tf.data, ragged": Reader(_TF_DATA, made.batches_dataset(ragged), inputs="ragged"),
    "PyDataset": Reader(_PY_DATASET, made.py_dataset()),
    "PyDataset, no workers": Reader(_PY_DATASET, made.py_dataset(workers=0)),
    "PyDataset, threads": Reader(_PY_DATASET, made.py_dataset(workers=2)),
    "PyDataset, processes": Reader(_PY_DATASET, made.py_dataset(workers=2, use_multiprocessing=True, max_queue_size=2)),
    "PyDataset, shuffled": Reader(_PY_DATASET, made.py_dataset(shuffle=True), fixed=_DRAWN),
    "PyDataset, shuffled, threads": Reader(_PY_DATASET, made.py_dataset(shuffle=True, workers=2), fixed=_DRAWN),
    "PyDataset, endless": Reader(_PY_DATASET, made.py_dataset(endless=True)),
    "PyDataset, endless, threads": Reader(_PY_DATASET, made.py_dataset(endless=True, workers=2)),
    "PyDataset, weights": Reader(_PY_DATASET, made.py_dataset(made.triple)),
    "PyDataset, two inputs": Reader(_PY_DATASET, made.py_dataset(made.pair_of_two), inputs="two"),
    "PyDataset, sparse": Reader(_PY_DATASET, made.py_dataset(made.sparse_pair), inputs="sparse"),
    "PyDataset, ragged": Reader(_PY_DATASET, made.py_dataset(made.ragged_pair), inputs="ragged"),
    "generator": Reader(_GENERATOR, made.generator(made.pair)),
    "generator, weights": Reader(_GENERATOR, made.generator(made.triple)),
    "generator, two inputs": Reader(_GENERATOR, made.generator(made.pair_of_two), inputs="two"),
    "generator, scipy csr": Reader(_GENERATOR, made.generator(made.csr_pair), inputs="sparse", needs="scipy"),
    "generator, ragged": Reader(_GENERATOR, made.generator(made.ragged_pair), inputs="ragged"),
    "grain.MapDataset": Reader(_GRAIN, made.only(made.grain_map), needs="grain"),
    "grain.IterDataset": Reader(
        _GRAIN, made.only(lambda first: made.grain_map(first).to_iter_dataset()), needs="grain"
    ),
    "grain.IterDataset, repeated": Reader(_GRAIN, made.grain_endless, needs="grain"),
    "grain.DataLoader": Reader(_GRAIN, made.only(made.grain_loader), needs="grain"),
    "torch DataLoader": Reader(_TORCH, made.only(made.torch_loader), needs="torch"),
    # Workers forked from a process with threads, as by default, sometimes die, in plain Keras, too.
    "torch DataLoader, processes": Reader(
        _TORCH,
        made.only(lambda first: made.torch_loader(first, num_workers=1, multiprocessing_context="spawn")),
        needs="torch",
    ),
    "torch DataLoader, stream": Reader(_TORCH, made.only(made.torch_stream), needs="torch"),
}

#: The readers that `make test` runs over two processes.
SAMPLE = (
    "tf.data, of unknown length",
    "PyDataset, threads",
    "PyDataset, shuffled",
    "generator",
    "grain.IterDataset, repeated",
)


def adapters() -> set[str]:
    """Returns the names of the classes with which Keras reads, found by walking its modules."""
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
