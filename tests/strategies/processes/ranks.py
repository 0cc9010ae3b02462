"""Common helpers and fixtures of the suites, in each of the processes that run them together.

The environment names the strategy and a folder that both processes see. Assertions compare the values of both ranks:
if one of them fails, the other fails, too, and neither waits for one that has failed.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

Policy = tf.data.experimental.AutoShardPolicy


@functools.cache
def strategy() -> Any:
    return getattr(strategies, os.environ["SUITE_STRATEGY"])()


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    strategy()


def process_group() -> Any:
    return strategy().extended.engine.process_group


def rank() -> int:
    return int(process_group().rank)


def all_ranks(value: Any) -> list[Any]:
    """Returns the value of each rank; numbers only."""
    return list(process_group().gather(tf.convert_to_tensor([value])).numpy().tolist())


def shared_folder(test: str, process_group: Any) -> Path:
    """Returns the folder of a test, the same on both ranks."""
    folder = Path(os.environ["SUITE_FOLDER"]) / test
    folder.mkdir(parents=True, exist_ok=True)
    process_group.barrier()
    return folder


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    return shared_folder(request.node.name, process_group())


class Rows(keras.Model):
    """Counts rows: its loss is the sum of its inputs over their number, and its one weight does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.seen = keras.metrics.Sum(name="seen")
        self.total = keras.metrics.Sum(name="total")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        self.seen.update_state(tf.ones_like(x))
        self.total.update_state(x)
        return {"seen": self.seen.result(), "total": self.total.result(), "loss": self._loss_tracker.result()}


@functools.cache
def counter(**kwargs: Any) -> Rows:
    """Returns one model for all tests: it learns nothing, and its step is traced once."""
    with strategy().scope():
        model = Rows()
        model.compile(keras.optimizers.SGD(0.0), "mse", **kwargs)
    return model


def numbers(count: int, first: int = 0) -> tf.data.Dataset:
    """Returns `first`, `first + 1`, ... as rows of a regression whose answer is 0."""
    x = np.arange(first, first + count, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, np.zeros_like(x)))


def with_policy(dataset: tf.data.Dataset, policy: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def fit(dataset: Any, **kwargs: Any) -> dict[str, list[float]]:
    history = counter().fit(dataset, verbose=0, shuffle=False, **kwargs).history
    seen = [float(value) for name in sorted(history) for value in history[name]]
    first, second = all_ranks(seen)
    assert first == second
    return {name: [float(value) for value in values] for name, values in history.items()}


def records(shared: Path, counts: list[int]) -> list[str]:
    """Writes TFRecord files with these counts of numbers on rank 0, 0, 1, ... in all; returns their paths."""
    paths = [str(shared / f"{i}.tfrecord") for i in range(len(counts))]
    if rank() == 0:
        value = 0
        for path, count in zip(paths, counts, strict=True):
            with tf.io.TFRecordWriter(path) as writer:
                for _ in range(count):
                    writer.write(np.float32(value).tobytes())
                    value += 1
    process_group().barrier()
    return paths


def read(paths: list[str]) -> tf.data.Dataset:
    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.reshape(tf.io.decode_raw(record, tf.float32), [1])
        return x, tf.zeros([1])

    return tf.data.TFRecordDataset(paths).map(parse)


def regression() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((30, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def dense(seed: int = 5, **settings: Any) -> keras.Model:
    """Returns a model with a built optimizer."""
    keras.utils.set_random_seed(seed)
    with strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05, **settings), "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    return model


def files_in(folder: Path) -> list[str]:
    process_group().barrier()
    return sorted(path.name for path in folder.iterdir())


def digest(model: keras.Model) -> float:
    return float(sum(np.abs(np.asarray(weight)).sum() for weight in model.get_weights()))
