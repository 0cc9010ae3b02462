"""Ranks with different data: run by `test_suites` in two processes at once, never collected.

All of them refuse it before the first step, with the fix, and the next call works; or they warn, if random draws may
explain the difference. Data that are declared a process' own are not compared.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.engine.seeds import agree_on_seed
from tests.strategies.processes.ranks import (
    Policy,
    all_ranks,
    dense,
    digest,
    process_group,
    rank,
    records,
    regression,
    with_policy,
)

# Keras warns of datasets of unknown length, and of `shuffle=True` for data that are not arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:`shuffle=True` was passed")

Data = tf.data.Dataset
#: 24 rows each: those of both ranks, and a rank's every second row, which differ between the ranks.
X, Y = (part[:24] for part in regression())
SHARD_X, SHARD_Y = (np.tile(part[rank() :: 2], (2, 1)) for part in (X, Y))
REFUSAL = r"leave out x\[rank::size\].*AutoShardPolicy\.OFF.*distribute_datasets_from_function"


@functools.cache
def model() -> Any:
    return dense()


def generator(x: Any, y: Any) -> Iterator[Any]:
    for begin in range(0, 24, 6):
        yield x[begin : begin + 6], y[begin : begin + 6]


class Batches(keras.utils.PyDataset):
    """Batches of six rows."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.x[6 * index : 6 * index + 6], self.y[6 * index : 6 * index + 6]


def slices(x: Any, y: Any) -> tf.data.Dataset:
    return Data.from_tensor_slices((x, y))


def noise() -> np.ndarray:
    return np.random.default_rng(rank()).normal(size=X.shape).astype("float32")


def fit(data: Any, y: Any = None, **arguments: Any) -> None:
    model().fit(data, y, verbose=0, **arguments)


#: By name of the difference: a call that all ranks refuse.
REFUSED: dict[str, Callable[[], Any]] = {
    "arrays": lambda: fit(SHARD_X, SHARD_Y, batch_size=6),
    "arrays in order": lambda: fit(SHARD_X, SHARD_Y, batch_size=6, shuffle=False),
    "numbers of rows": lambda: fit(X[: 24 - rank()], Y[: 24 - rank()], batch_size=6),
    "order of arrays": lambda: fit(X[:: 1 - 2 * rank()], Y[:: 1 - 2 * rank()], batch_size=6),
    "a shard": lambda: fit(slices(X, Y).shard(2, rank()).batch(6)),
    "slices": lambda: fit(slices(SHARD_X, SHARD_Y).batch(6)),
    "rows that are mapped": lambda: fit(slices(SHARD_X, SHARD_Y).map(lambda x, y: (x + 1, y)).batch(6)),
    "rows that are skipped": lambda: fit(slices(X, Y).skip(6 * rank()).take(18).batch(6)),
    "labels of augmented rows": lambda: fit(
        slices(SHARD_X, SHARD_Y).map(lambda x, y: (x + tf.random.normal([4]), y), num_parallel_calls=2).batch(6)
    ),
    "shuffled with other seeds": lambda: fit(slices(X, Y).shuffle(24, seed=rank()).batch(6)),
    "of unknown length": lambda: fit(slices(SHARD_X, SHARD_Y).filter(lambda x, y: True).batch(6)),
    "generator": lambda: fit(generator(SHARD_X, SHARD_Y)),
    "PyDataset": lambda: fit(Batches(SHARD_X, SHARD_Y), shuffle=False),
    "evaluate": lambda: model().evaluate(SHARD_X, SHARD_Y, verbose=0),
    "predict": lambda: model().predict(SHARD_X, verbose=0),
    "train_on_batch": lambda: dense().train_on_batch(SHARD_X, SHARD_Y),
    "test_on_batch": lambda: dense().test_on_batch(SHARD_X, SHARD_Y),
    "predict_on_batch": lambda: dense().predict_on_batch(SHARD_X),
}

#: By name: calls that all ranks accept, although something in them differs or is drawn at random.
TAKEN: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: fit(X, Y, batch_size=6, validation_data=(X, Y), epochs=2),
    "shuffled slices": lambda: fit(slices(X, Y).shuffle(24).map(lambda x, y: (x, y)).batch(6), epochs=2),
    "augmented": lambda: fit(
        slices(X, Y).map(lambda x, y: (x + tf.random.normal([4], seed=rank()), y * tf.random.uniform([]))).batch(6)
    ),
    "its own": lambda: fit(with_policy(slices(SHARD_X, SHARD_Y).batch(3), Policy.OFF)),
    "later batches": lambda: fit(slices(np.r_[X, SHARD_X], np.r_[Y, SHARD_Y]).batch(6)),
    "the last rows of a batch": lambda: fit(slices(X[:7], Y[:7]).batch(4)),
    "fewer rows than ranks": lambda: fit(slices(X[:1], Y[:1]).batch(4)),
    "on batches": lambda: [
        (model().train_on_batch(X[:7], Y[:7]), model().test_on_batch(X, Y), model().predict_on_batch(X))
        for _ in range(2)
    ],
}


def test_other_data_are_refused() -> None:
    start = digest(model())
    for name, call in REFUSED.items():
        with pytest.raises(ValueError, match=REFUSAL):
            (call(), print(f"{name}: taken"))
    assert all_ranks(digest(model())) == [start] * 2
    # Validation data are refused when validation begins.
    with pytest.raises(ValueError, match=REFUSAL):
        fit(X, Y, batch_size=6, validation_data=(SHARD_X, SHARD_Y))


def test_the_same_data_are_taken() -> None:
    for call in TAKEN.values():
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*first batch")
            call()
    assert all_ranks(digest(model())) == [digest(model())] * 2


def test_seeds_of_a_program_that_sets_no_global_one() -> None:
    def draws() -> dict[str, list[int]]:
        def noise(x: tf.Tensor, seed: int | None) -> tf.Tensor:
            return x + tf.random.uniform([], maxval=2**40, dtype=tf.int64, seed=seed)

        found = {f"order {seed}": Data.range(24).shuffle(24, seed=seed) for seed in (None, 7)}
        found |= {f"noise {seed}": Data.range(4).map(functools.partial(noise, seed=seed)) for seed in (None, 7)}
        return {name: [int(value) for value in data] for name, data in found.items()}

    tf.random.set_seed(None)  # as in a new process
    alone = draws()
    agree_on_seed(process_group())
    together = draws()
    for name, values in together.items():
        assert all_ranks(values) == [values] * 2, name
        assert (values == alone[name]) == name.endswith("7"), name
    # Another strategy of the program, and a process that has no seed yet.
    agree_on_seed(process_group())
    if rank() == 1:
        tf.random.set_seed(None)
    agree_on_seed(process_group())
    again = draws()
    assert all_ranks(again["order None"]) == [again["order None"]] * 2
    assert again["order 7"] == alone["order 7"]


@pytest.mark.parametrize("make", [lambda: generator(X + noise(), Y), lambda: Batches(X + noise(), Y)])
def test_noise_of_python_is_warned_of(make: Callable[[], Any]) -> None:
    with pytest.warns(UserWarning, match=r"on ranks 1 has other values.*set_random_seed.*AutoShardPolicy"):
        fit(make(), shuffle=False)


def test_files_of_other_rows(shared: Path) -> None:
    def read(paths: list[str]) -> tf.data.Dataset:
        def parse(record: tf.Tensor) -> Any:
            x = tf.reshape(tf.io.decode_raw(record, tf.float32), [1])
            return tf.repeat(x, 4) + tf.random.normal([4]), x

        return Data.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset).map(parse).batch(4)

    paths = records(shared, [6, 6, 6, 6])
    fit(read(paths))
    with pytest.raises(ValueError, match=REFUSAL):
        fit(read(paths[rank() :: 2]))


def test_the_order_of_a_py_dataset_is_rank_0s() -> None:
    """Keras shuffles its batches with Python's generator, whose state differs between the ranks here."""
    random.seed(rank())
    np.random.seed(rank())
    fit(Batches(X, Y), shuffle=True, epochs=2)
    first, second = all_ranks(random.random())
    assert first == second
