"""Splits of global batches over replicas."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.batches import inputs


def rows(dataset: tf.data.Dataset) -> list[list[list[int]]]:
    """Returns the rows, by batch and replica."""
    return [[list(map(int, value.numpy())) for value in batch.values] for batch in dataset]


class TestDistribute:
    @pytest.mark.parametrize("num_replicas", [2, 3, 4])
    @pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
    def test_every_row_once_in_order_and_sizes_differ_by_one(self, num_replicas: int, batch_size: int) -> None:
        dataset = inputs.distribute(tf.data.Dataset.range(10).batch(batch_size), num_replicas)
        shared = rows(dataset)
        assert [row for batch in shared for replica in batch for row in replica] == list(range(10))
        for batch in shared:
            sizes = [len(replica) for replica in batch]
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True)

    def test_literal(self) -> None:
        dataset = inputs.distribute(tf.data.Dataset.range(8).batch(5), 3)
        assert rows(dataset) == [[[0, 1], [2, 3], [4]], [[5], [6], [7]]]

    def test_keeps_the_cardinality(self) -> None:
        dataset = tf.data.Dataset.range(10).batch(3)
        assert int(inputs.distribute(dataset, 2).cardinality()) == 4
        assert int(inputs.distribute(dataset.repeat(), 2).cardinality()) == tf.data.INFINITE_CARDINALITY

    def test_static_batches_stay_static(self) -> None:
        dataset = inputs.distribute(tf.data.Dataset.range(8).batch(4, drop_remainder=True), 2)
        assert [spec.shape for spec in dataset.element_spec._value_specs] == [[2], [2]]

    def test_twice_is_once(self) -> None:
        dataset = inputs.distribute(tf.data.Dataset.range(8).batch(4), 2)
        assert inputs.distribute(dataset, 2) is dataset

    def test_leaves_the_dataset_to_one_replica(self) -> None:
        dataset = tf.data.Dataset.range(8).batch(4)
        assert inputs.distribute(dataset, 1) is dataset

    def test_keeps_the_structure(self) -> None:
        element = {"a": np.arange(4), "b": (np.arange(4), {"c": np.arange(8).reshape(4, 2)})}
        for wrapped in (element, (element,), ((element, np.arange(4)),)):
            dataset = tf.data.Dataset.from_tensor_slices(wrapped).batch(4)
            shared = inputs.distribute(dataset, 2)
            keras.tree.assert_same_structure(shared.element_spec, dataset.element_spec)

    def test_ragged_and_sparse(self) -> None:
        ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
        (batch,) = inputs.distribute(tf.data.Dataset.from_tensors(ragged), 2)
        assert [value.to_list() for value in batch.values] == [[[1], [2, 3], []], [[4, 5, 6], [7]]]
        sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])
        (batch,) = inputs.distribute(tf.data.Dataset.from_tensors(sparse), 2)
        assert [tf.sparse.to_dense(value).numpy().tolist() for value in batch.values] == [[[1, 0], [0, 2]], [[3, 0]]]

    def test_scalars_go_to_every_replica(self) -> None:
        dataset = tf.data.Dataset.from_tensors((tf.range(4), tf.constant(7)))
        ((_, number),) = inputs.distribute(dataset, 2)
        assert [int(value) for value in number.values] == [7, 7]


class TestThroughTheStrategy:
    x = np.arange(20, dtype="float32").reshape(10, 2)

    def make(self) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        return model

    def dataset(self, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((self.x, self.x[:, :1])).batch(batch_size)

    def test_fit_takes_a_dataset_distributed_before(self) -> None:
        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = self.make()
        plain = self.make()
        model.fit(strategy.experimental_distribute_dataset(self.dataset(4)), verbose=0, shuffle=False)
        plain.fit(self.dataset(4), verbose=0, shuffle=False)
        np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)

    def test_fit_takes_datasets_from_a_function(self) -> None:
        """Each replica takes one batch of the pipeline in turn; the last of five batches leaves one replica empty."""
        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

        def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
            assert context.num_replicas_in_sync == 2
            return self.dataset(context.get_per_replica_batch_size(4))

        with strategy.scope():
            model = self.make()
        plain = self.make()
        model.fit(strategy.distribute_datasets_from_function(make_dataset), steps_per_epoch=3, verbose=0, shuffle=False)
        plain.fit(self.dataset(4), verbose=0, shuffle=False)
        np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)

    def test_values_gathered_by_replica(self) -> None:
        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
        run = tf.function(lambda x: strategy.run(lambda y: y * 2, args=(x,)))
        for size in (1, 2, 3, 7):
            (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(size).batch(size))
            gathered = strategy.gather(run(batch), axis=0)
            assert gathered.numpy().tolist() == [2 * i for i in range(size)]
