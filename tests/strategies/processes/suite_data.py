"""Sharding of datasets over processes: run by `test_suites` in two processes at once, never collected."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.processes.ranks import (
    Policy,
    all_ranks,
    counter,
    dense,
    digest,
    fit,
    numbers,
    rank,
    read,
    records,
    regression,
    strategy,
    with_policy,
)

# Keras warns of every dataset of unknown length, with or without a strategy.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


def test_each_process_knows_its_place() -> None:
    assert all_ranks(strategy().rank) == [0, 1]
    assert all_ranks(strategy().local_rank) == [0, 1]
    assert all_ranks(strategy().world_size) == [2, 2]
    assert all_ranks(int(strategy().is_chief)) == [1, 0]


class TestDatasets:
    def test_row_by_row_each_example_once(self) -> None:
        logs = fit(numbers(21).batch(4), epochs=2)
        assert logs["seen"] == [21.0, 21.0]
        assert logs["total"] == [210.0, 210.0]

    def test_auto_shard_by_data_is_row_by_row(self) -> None:
        assert fit(with_policy(numbers(21).batch(4), Policy.DATA))["total"] == [210.0]

    @pytest.mark.parametrize("counts", [[5, 7, 3, 6], [21, 0], [1, 20]])
    def test_auto_shard_by_file_each_example_once(self, shared: Path, counts: list[int]) -> None:
        logs = fit(with_policy(read(records(shared, counts)).batch(4), Policy.FILE), epochs=2)
        assert logs["seen"] == [21.0, 21.0]
        assert logs["total"] == [210.0, 210.0]

    def test_by_file_the_mean_counts_every_row_alike(self, shared: Path) -> None:
        logs = fit(with_policy(read(records(shared, [3, 2])).batch(8), Policy.FILE))
        assert logs["loss"] == pytest.approx([np.mean(np.arange(5.0) ** 2)], rel=1e-6)

    def test_unknown_length(self, shared: Path) -> None:
        assert fit(read(records(shared, [9, 4])).batch(4), epochs=2)["total"] == [78.0, 78.0]

    def test_of_a_py_dataset_the_length_is_known(self, caplog: pytest.LogCaptureFixture) -> None:
        class Numbers(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 3

            def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
                x = np.arange(21, dtype="float32").reshape(-1, 1)[7 * index : 7 * index + 7]
                return x, x

        with caplog.at_level(logging.INFO, "strategies"), warnings.catch_warnings():
            warnings.simplefilter("error")
            logs = fit(Numbers(), epochs=2)
        assert logs["total"] == [210.0, 210.0]
        assert "its length is unknown" not in caplog.text

    @pytest.mark.parametrize(
        ("counts", "steps_per_execution"),
        [
            pytest.param((8, 8), 1, marks=pytest.mark.parity_all),
            ((13, 5), 3),
            ((0, 6), 1),
            pytest.param((6, 0), 3, marks=pytest.mark.parity_all),
        ],
    )
    def test_its_own_dataset_of_any_length(self, counts: tuple[int, int], steps_per_execution: int) -> None:
        mine = with_policy(numbers(counts[rank()], first=100 * rank()).batch(3), Policy.OFF)
        model = counter(steps_per_execution=steps_per_execution)
        history = model.fit(mine, epochs=2, verbose=0, shuffle=False).history
        total = sum(range(counts[0])) + sum(range(100, 100 + counts[1]))
        assert history["seen"] == [sum(counts)] * 2
        assert history["total"] == [total] * 2

    def test_from_a_function_with_an_input_context(self) -> None:
        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            assert (context.num_input_pipelines, context.input_pipeline_id) == (2, rank())
            shard = numbers(11).shard(context.num_input_pipelines, context.input_pipeline_id)
            return shard.batch(context.get_per_replica_batch_size(4))

        logs = fit(strategy().distribute_datasets_from_function(make))
        assert logs["total"] == [55.0]

    def test_steps_per_epoch_of_an_infinite_dataset(self) -> None:
        logs = fit(numbers(8).repeat().batch(4), steps_per_epoch=3, epochs=2)
        assert logs["seen"] == [12.0, 12.0]

    def test_lengths_that_differ_row_by_row_end_with_the_shortest(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "strategies"):
            logs = fit(numbers(8 if rank() else 16).batch(4))
        assert logs["seen"] == [8.0]
        assert "[4, 2]" in caplog.text

    def test_the_plan_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "strategies"):
            fit(numbers(8).batch(4))
        said = [record for record in caplog.records if "Sharing the dataset out" in record.message]
        assert len(said) == (1 if rank() == 0 else 0)

    @pytest.mark.parametrize("known", [True, False])
    def test_each_process_maps_its_own_rows_only(self, known: bool, caplog: pytest.LogCaptureFixture) -> None:
        seen: list[float] = []

        def decode(x: np.ndarray) -> np.ndarray:
            seen.append(float(x[0]))
            return x + 1

        def row(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.ensure_shape(tf.numpy_function(decode, [x], tf.float32), [1]), y

        rows = numbers(21) if known else numbers(21).filter(lambda x, y: True)
        with caplog.at_level(logging.INFO, "strategies"):
            logs = fit(rows.map(row, num_parallel_calls=2).batch(6).prefetch(1), epochs=2)
        assert logs["total"] == [231.0, 231.0]
        assert logs["loss"] == pytest.approx([np.mean(np.arange(1.0, 22.0) ** 2)] * 2, rel=1e-6)
        # The last batch has three rows; two of them go to rank 0.
        mine = [*range(6 * rank() // 2, 3 + 6 * rank() // 2)]
        expected = [6 * k + i for k in range(3) for i in mine] + [[18, 19], [20]][rank()]
        assert sorted(seen) == sorted([*expected, *expected])
        if rank() == 0:
            assert "maps its own rows" in caplog.text
            assert ("assert_cardinality" in caplog.text) != known

    def test_fewer_rows_than_processes(self) -> None:
        """Rank 1 maps the one row of the last batch as a dummy row, which counts for nothing."""
        plain = numbers(5).map(lambda x, y: (x + 1, y)).batch(2)
        assert fit(plain)["total"] == [15.0]

    def test_shuffles_without_a_seed_are_alike(self) -> None:
        assert fit(numbers(64).shuffle(64).batch(8), epochs=3)["total"] == [2016.0] * 3
        x = np.arange(64, dtype="float32")[:, None]
        history = counter().fit(x, 0 * x, batch_size=8, epochs=2, shuffle=True, verbose=0).history
        assert history["total"] == [2016.0] * 2

    def test_a_generator_that_can_be_read_once(self) -> None:
        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for begin in range(0, 20, 5):
                x = np.arange(begin, begin + 5, dtype="float32")[:, None]
                yield x, 0 * x

        assert fit(batches())["total"] == [190.0]


class Sevens(keras.utils.PyDataset):
    """The regression in batches of seven rows."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = regression()
        return x[7 * index : 7 * index + 7], y[7 * index : 7 * index + 7]


class TestReadingAhead:
    # The length of a PyDataset is known, too.
    @pytest.mark.parametrize(
        "kind", [pytest.param("of known length", marks=pytest.mark.parity_all), "agreed upon", "PyDataset"]
    )
    def test_it_changes_nothing(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The strategy treats CPU devices as GPUs."""
        x, y = regression()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
        mine: Any = data
        if kind == "agreed upon":
            mine = with_policy(data.take(3) if rank() else data, Policy.OFF)
        if kind == "PyDataset":
            mine = Sevens()
        results = []
        for ahead in (True, False):
            monkeypatch.setattr(type(strategy().extended.engine), "computes_on_gpus", ahead)
            model = dense()
            # "auto" compiles the replicas' functions on GPUs, which changes the last bits.
            model.jit_compile = False
            # Processes that agree at every element call the steps one by one, whether they read ahead or not.
            model.steps_per_execution = 2 if kind == "agreed upon" else 1
            logs = model.fit(mine, validation_data=data, epochs=2, verbose=0, shuffle=False).history
            results.append([digest(model), *(value for name in sorted(logs) for value in logs[name])])
        assert results[0] == results[1]
        assert all_ranks(results[0][0]) == [results[0][0]] * 2

    def test_one_process_without_gpus_keeps_the_others_from_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Processes that agree at every element must all read ahead, or none."""
        monkeypatch.setattr(type(strategy().extended.engine), "computes_on_gpus", rank() == 0)
        logs = fit(with_policy(numbers(9 + 4 * rank()).batch(3), Policy.OFF), epochs=2)
        assert logs["seen"] == [22.0, 22.0]
