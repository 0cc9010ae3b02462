"""Pipelines rebuilt to map only a process' own rows, compared with whole batches that are cut afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.batches import early_selection, inputs
from strategies.batches.portions import Portion, PortionSpec

Data = tf.data.Dataset
WORLDS = [(2, 1), (3, 2)]


def as_lists(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def plain(portion: Portion) -> tuple[list[Any], list[int], int]:
    """Returns the rows of each replica (None for a dummy row), their numbers, and the number of rows of the batch."""
    own, rows = portion.num_own.numpy().tolist(), int(portion.num_all)
    values = [as_lists(value) for value in portion.values]
    assert all(len(value) == max(1, count) for value, count in zip(values, own, strict=True))
    return [value if count else None for value, count in zip(values, own, strict=True)], own, rows


def check(dataset: tf.data.Dataset, first: int, num_local: int, num_replicas: int, limit: int = 20) -> None:
    """Asserts that both plans give the same portions."""
    whole = inputs.map_batches(dataset, lambda b: inputs.portion_out(b, first, num_local, num_replicas))
    own = early_selection.select_before_mapping(dataset, first, num_local, num_replicas)
    assert not isinstance(own, str), own
    assert int(own.cardinality()) == int(dataset.cardinality())
    tf.nest.assert_same_structure(own.element_spec, whole.element_spec)
    for one, other in zip(tf.nest.flatten(own.element_spec), tf.nest.flatten(whole.element_spec), strict=True):
        assert isinstance(one, PortionSpec)
        assert (one, one._component_specs) == (other, other._component_specs)
    expected, got = list(whole.take(limit)), list(own.take(limit))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        tf.nest.assert_same_structure(one, other)
        for left, right in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert plain(left) == plain(right)


def check_all(dataset: tf.data.Dataset, worlds: list[tuple[int, int]] = WORLDS) -> None:
    for processes, num_local in worlds:
        for rank in range(processes):
            check(dataset, rank * num_local, num_local, processes * num_local)


@pytest.mark.parametrize(
    ("rows", "size", "drop_remainder"),
    [(11, 4, False), (3, 8, False), (0, 4, False), (11, 4, True), (8, 1, True)],
)
def test_any_length_of_any_batch(rows: int, size: int, drop_remainder: bool) -> None:
    check_all(Data.range(rows).map(lambda x: 3 * x + 1).batch(size, drop_remainder))


@pytest.mark.parametrize(
    ("rows", "size", "drop_remainder"),
    [(11, 4, False), (9, 8, False), (5, 1, False), (12, 6, True)],
)
def test_slices_of_arrays(rows: int, size: int, drop_remainder: bool) -> None:
    arrays = {"x": np.arange(2.0 * rows).reshape(rows, 2), "y": (np.arange(rows), [f"{i}" for i in range(rows)])}
    check_all(Data.from_tensor_slices(arrays).batch(size, drop_remainder).repeat(2).prefetch(2))


def test_no_slices_of_ragged_arrays() -> None:
    why = early_selection.select_before_mapping(Data.from_tensor_slices(RAGGED).batch(2), 0, 1, 2)
    assert isinstance(why, str)
    assert "of another kind than tensors" in why


SLICES = {"x": np.arange(22.0).reshape(11, 2), "y": (np.arange(11), np.arange(11) % 3 == 0)}


RAGGED = tf.ragged.constant([[[1], [2, 3]], [], [[4]], [[5, 6], [7], []], [[8]]])


def strings() -> tf.data.Dataset:
    return Data.from_tensor_slices([f"{i}" for i in range(11)])


def lengths() -> tf.data.Dataset:
    return Data.range(11).filter(lambda x: x % 2 == 0)


PIPELINES: dict[str, Callable[[], tf.data.Dataset]] = {
    "nested": lambda: Data.from_tensor_slices(SLICES).map(lambda e: (e["x"] + 1, {"b": e["y"]})).batch(4),
    "two maps": lambda: strings().map(tf.strings.to_number).map(lambda x: (x, x * x)).batch(4).prefetch(2),
    "in parallel": lambda: (
        Data.range(11)
        .map(lambda x: x + 1, num_parallel_calls=4)
        .prefetch(1)
        .map(tf.square, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(4, num_parallel_calls=2)
        .prefetch(tf.data.AUTOTUNE)
    ),
    "unknown": lambda: lengths().map(lambda x: x + 1).batch(4),
    "unknown, full batches": lambda: lengths().map(lambda x: x + 1).batch(4, drop_remainder=True),
    "asserted rows": lambda: lengths().map(lambda x: x + 1).apply(tf.data.experimental.assert_cardinality(6)).batch(4),
    "asserted batches": lambda: (
        lengths().map(lambda x: x + 1).batch(4).apply(tf.data.experimental.assert_cardinality(2))
    ),
    "without end": lambda: Data.range(7).repeat().map(lambda x: x + 1).batch(4),
    "batches again": lambda: Data.range(7).map(lambda x: x + 1).batch(4).repeat(3).skip(1).take(4),
    "shuffled below": lambda: (
        Data.range(11).shuffle(11, seed=3, reshuffle_each_iteration=False).map(lambda x: x + 1).batch(4)
    ),
    "ragged": lambda: Data.range(11).map(lambda x: tf.RaggedTensor.from_tensor(tf.fill([2, x % 3], x))).batch(4),
    "ragged source": lambda: Data.from_tensor_slices(RAGGED).map(lambda r: (r, tf.reduce_sum(r))).batch(4),
    "sparse": lambda: Data.range(11).map(lambda x: tf.sparse.from_dense(tf.one_hot(x, 11))).batch(4),
    "a table": lambda: strings().map(table().lookup).batch(4),
    "drawn from the row's number": lambda: (
        Data.range(11).map(lambda x: tf.random.stateless_uniform([2], seed=[x, x])).batch(4)
    ),
    "stateful below": lambda: counted().map(lambda x: x % 5).batch(4),
}


def table() -> tf.lookup.StaticHashTable:
    keys = tf.constant([f"{i}" for i in range(11)])
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.range(11)), -1)


def counted() -> tf.data.Dataset:
    """Returns rows of a stateful map whose counter does not change its result."""
    count = tf.Variable(0, dtype=tf.int64)
    return Data.range(11).map(lambda x: (x + count.assign_add(11)) % 11)


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name: str) -> None:
    # The tests above cover the rows that each replica reads: two processes with two replicas each suffice.
    check_all(PIPELINES[name](), [(2, 2)])


def by_files(path: str) -> tf.data.Dataset:
    return Data.from_tensors(path).repeat(4).map(tf.io.read_file).batch(2)


def test_files(tmp_path: Any) -> None:
    (tmp_path / "a").write_bytes(b"ab")
    check_all(by_files(str(tmp_path / "a")), [(2, 1)])


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_only_its_own_rows_are_mapped(drop_remainder: bool) -> None:
    seen: list[int] = []

    def decode(x: Any) -> Any:
        seen.append(int(x))
        return np.int64(x)

    def pipeline() -> tf.data.Dataset:
        rows = Data.range(18).map(lambda x: tf.numpy_function(decode, [x], tf.int64))
        return rows.map(lambda x: tf.ensure_shape(x, [])).batch(7, drop_remainder)

    own = early_selection.select_before_mapping(pipeline(), 1, 1, 2)
    gc.collect()  # the pipeline is gone, its functions are not
    assert len(list(own)) == (2 if drop_remainder else 3)
    assert seen == [4, 5, 6, 11, 12, 13, *([] if drop_remainder else [16, 17])]


def test_rows_stay_in_order_even_where_they_need_not() -> None:
    options = tf.data.Options()
    options.deterministic = False
    pipeline = Data.range(99).with_options(options).map(lambda x: x, num_parallel_calls=4, deterministic=False).batch(7)
    own = [early_selection.select_before_mapping(pipeline, rank, 1, 2) for rank in range(2)]
    rows = [row for both in zip(*own, strict=True) for one in both for row in one.values[0].numpy().tolist()]
    assert rows == [*range(98), 98, 98]  # the last batch has one row; rank 1 has a dummy copy of it


def test_options_stay() -> None:
    options = tf.data.Options()
    options.experimental_slack = True
    dataset = Data.range(4).map(lambda x: x + 1).with_options(options).batch(2)
    own = early_selection.select_before_mapping(dataset, 0, 1, 2)
    assert own.options().experimental_slack


def test_a_wrong_number_of_rows_is_an_error_as_ever() -> None:
    dataset = Data.range(4).batch(2).map(lambda x: x).unbatch().map(lambda x: x + 1)
    dataset = dataset.batch(2).apply(tf.data.experimental.assert_cardinality(5))
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(early_selection.select_before_mapping(dataset, 0, 1, 2))


def generated() -> Iterator[int]:
    yield from range(4)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda d: d.map(lambda x: x + 1).shuffle(4).batch(2), "`shuffle`"),
        (lambda d: d.map(lambda x: x + 1).cache().batch(2), "`cache`"),
        (lambda d: d.map(lambda x: x + 1).filter(lambda x: x > 1).batch(2), "`filter`"),
        (lambda d: d.map(lambda x: x + 1).batch(2).map(lambda x: x), "`map` comes after"),
        (lambda d: d.map(lambda x: x + 1).batch(2).unbatch().batch(2), "stands between"),
        (lambda d: d.map(lambda x: x + 1).repeat(2).batch(3), "`repeat`"),
        (lambda d: d.map(lambda x: tf.fill([x], x)).padded_batch(2), "not made by"),
        (lambda d: d.map(lambda x: tf.random.uniform([2])).batch(2), "stateless"),
        (lambda d: d.map(lambda x: tf.cond(x > 1, lambda: tf.random.normal([]), lambda: 0.0)).batch(2), "stateless"),
        (lambda d: d.map(lambda x: tf.random.get_global_generator().normal([])).batch(2), "stateless"),
        (lambda d: d.map(lambda x: tf.random.shuffle([x, x])).batch(2), "stateless"),
        (lambda d: d.shuffle(4).batch(2), "no map"),
        (lambda d: d.batch(2), "no map"),
    ],
)
def test_what_it_leaves_alone(make: Callable[[tf.data.Dataset], tf.data.Dataset], reason: str) -> None:
    refused = early_selection.select_before_mapping(make(Data.range(4)), 0, 1, 2)
    assert isinstance(refused, str)
    assert reason in refused


def test_a_generator_of_rows() -> None:
    check_all(Data.from_generator(generated, output_signature=tf.TensorSpec([], tf.int64)).map(tf.square).batch(3))
