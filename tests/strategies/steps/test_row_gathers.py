"""`gather_rows` and its gradient, on the devices of one process; the numbers are those of one device.

Between processes it is tested in ``tests/strategies/processes/suite_programs.py``.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.batches.row_kinds import Kind
from strategies.batches.shares import current

ROWS = np.random.default_rng(0).standard_normal((7, 3)).astype("float32")


def on_each(num_replicas: int, function: Any, x: Any = ROWS, *, in_graph: bool = True) -> list[Any]:
    """Returns the result of `function` on the rows of each replica, in a step of a custom loop."""
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    [batch] = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x))

    def step(batch: Any) -> Any:
        return strategy.run(function, args=(batch,))

    made = (tf.function(step) if in_graph else step)(batch)
    flat = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(made)]
    return [tf.nest.pack_sequence_as(made, list(each)) for each in zip(*flat, strict=True)]


@pytest.mark.parametrize("num_rows", [7, 3, 1])
@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "eager"])
def test_all_rows_and_the_sum_of_all_gradients(num_rows: int, in_graph: bool) -> None:
    """Batches may divide unevenly, or leave replicas without rows."""
    x = ROWS[:num_rows]

    def step(x: tf.Tensor) -> Any:
        scale = tf.cast(current().replica_id + 1, tf.float32)  # type: ignore[union-attr]
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                rows = strategies.gather_rows({"a": x, "none": None})["a"]
                # Each number of the matrix depends on all rows.
                loss = scale * tf.reduce_sum(tf.square(tf.matmul(rows, rows, transpose_b=True)))
            slope = tape.gradient(loss, x)
            target = tf.reduce_sum(slope**2)
        return rows[None], slope, outer.gradient(target, x), tf.reshape(strategies.global_rows(x), [1])

    whole = tf.constant(x)
    with tf.GradientTape() as outer:
        outer.watch(whole)
        with tf.GradientTape() as tape:
            tape.watch(whole)
            loss = sum(range(1, 5)) * tf.reduce_sum(tf.square(tf.matmul(whole, whole, transpose_b=True)))
        slope = tape.gradient(loss, whole)
        target = tf.reduce_sum(slope**2)
    curvature = outer.gradient(target, whole)
    replicas = on_each(4, step, x, in_graph=in_graph)
    for rows, *_, number in replicas:
        # In a custom loop, a replica without rows runs on a dummy row, and one row of each of its outputs is left out.
        assert all(int(each) == num_rows for each in number)
        for each in rows:
            np.testing.assert_array_equal(each, x)
    np.testing.assert_allclose(np.concatenate([each[1] for each in replicas]), slope, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([each[2] for each in replicas]), curvature, rtol=1e-5)


def test_any_dtype_in_order() -> None:
    kinds = (tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.uint8, tf.bool, tf.complex64, tf.string)
    of_dtypes = [tf.as_string(tf.constant(ROWS)) if dtype == tf.string else tf.cast(ROWS, dtype) for dtype in kinds]
    found: list[Any] = []

    def step(batch: Any) -> Any:
        gathered = strategies.gather_rows(batch)
        found.append({current().dependence.kind(each) for each in gathered})  # type: ignore[union-attr]
        return [each[None] for each in gathered]

    for replica in on_each(2, step, tuple(of_dtypes)):
        for received, sent in zip(replica, of_dtypes, strict=True):
            assert received.dtype == sent.dtype
            np.testing.assert_array_equal(received[0], sent)
    # The rows are the same on all replicas; a loss computed from them is weighted accordingly.
    assert found == [{Kind.SAME}] * 2


def refused(function: Any) -> str:
    with pytest.raises(ValueError, match="Received") as error:
        on_each(2, function)
    return str(error.value)


def test_refusals_say_what_to_write() -> None:
    gather = strategies.gather_rows

    def in_function(x: tf.Tensor) -> tf.Tensor:
        return tf.function(gather, autograph=False)(x)

    def in_branch(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0, 0] > 0, lambda: gather(x), lambda: x)

    def in_loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i: i < 2, lambda i: i + tf.shape(gather(x))[0], [0])[0]

    for function in (in_function, in_branch, in_loop):
        assert "where the replicas cannot synchronize. Call it outside of that" in refused(function)
    assert "takes tensors with rows" in refused(lambda x: gather(x[0, 0]))
    assert "gathers dense tensors" in refused(lambda x: gather(tf.sparse.from_dense(x)))
    with pytest.raises(ValueError, match="in the `call` of a layer"):
        gather(keras.Input((3,)))
    with (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope() as strategy,
        pytest.raises(ValueError, match="under"),
    ):
        strategy.run(lambda: gather(tf.ones([2, 2])))


def test_one_device_has_all_rows() -> None:
    x = tf.constant(ROWS)
    assert strategies.gather_rows([x])[0] is x
    assert strategies.global_rows(x) == 7
    [[alone]] = on_each(1, lambda x: [strategies.gather_rows(x)])
    np.testing.assert_array_equal(alone, ROWS)
    with pytest.raises(ValueError, match="Pass a tensor"):
        strategies.global_rows()


class MinibatchDeviation(keras.layers.Layer):
    """Appends the mean, over features, of their standard deviation over the batch as one more feature (ProGAN)."""

    def call(self, x: Any) -> Any:
        rows = strategies.gather_rows(x)
        centred = rows - tf.reduce_mean(rows, 0)
        deviation = tf.reduce_mean(tf.sqrt(tf.reduce_mean(tf.square(centred), 0) + 1e-8))
        return tf.concat([x, tf.fill([tf.shape(x)[0], 1], deviation)], 1)


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 4, "tensor": 2}], ids=str)
def test_a_layer_looks_at_the_whole_batch(mesh: dict[str, int]) -> None:
    """Tests `fit`, `evaluate` and `predict` with uneven batches, the symbolic build, and saving."""
    import keras_ext

    def trained(strategy: Any) -> list[Any]:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Dense(4, "tanh"), MinibatchDeviation(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((3,)), *layers])
            model = keras_ext.parallelize(model) if "tensor" in mesh and hasattr(strategy, "mesh") else model
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        history = model.fit(ROWS, ROWS[:, :1], batch_size=3, epochs=2, shuffle=False, verbose=0).history
        tested = model.evaluate(ROWS, ROWS[:, :1], batch_size=7, verbose=0)
        return [*history.values(), tested, model.predict(ROWS, batch_size=5, verbose=0), *model.get_weights()]

    expected = trained(tf.distribute.get_strategy())
    for one, other in zip(trained(strategies.MirroredStrategy(mesh=mesh)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
