"""VocabParallelSparseCategoricalCrossentropy and ..Accuracy: the results of Keras' own, for split logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ext.tensor.dense import ColumnParallelDense
from keras_ext.tensor.embedding import VocabParallelReversibleEmbedding
from keras_ext.tensor.losses import VocabParallelSparseCategoricalAccuracy, VocabParallelSparseCategoricalCrossentropy
from keras_ext.tensor.mappings import Shards
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.releases import needs_keras
from tests.strategies.parity.harness import NUM_ROWS, labels, vectors

DATA_AND_TENSOR = {"data": 2, "tensor": 2}
NUM_CLASSES = 8


def keras_loss(**kwargs: Any) -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


def classifier(split: bool, metric: bool = True, **kwargs: Any) -> keras.Model:
    head = ColumnParallelDense(NUM_CLASSES, gather_output=False) if split else keras.layers.Dense(NUM_CLASSES)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), head])
    loss = VocabParallelSparseCategoricalCrossentropy(**kwargs) if split else keras_loss(**kwargs)
    accuracy = VocabParallelSparseCategoricalAccuracy() if split else keras.metrics.SparseCategoricalAccuracy()
    model.compile(
        keras.optimizers.Adam(0.01, global_clipnorm=0.5),
        loss,
        metrics=[accuracy] if metric else ["accuracy"],
        weighted_metrics=[type(accuracy)("weighted")],
    )
    return model


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_parity(axes: Mapping[str, int]) -> None:
    assert_parity(classifier, vectors(), labels(NUM_CLASSES), axes, predict=True)


ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "ignored class": {"ignore_class": 2},
    "sum": {"reduction": "sum"},
    "mean over weights": {"reduction": "mean_with_sample_weight", "ignore_class": 1},
    "dtype": {"dtype": "float64"},
    "Keras' accuracy": {"metric": False},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_and_sample_weights(arguments: dict[str, Any]) -> None:
    weights = np.linspace(0, 2, NUM_ROWS, dtype="float32")
    x, y = vectors(), labels(NUM_CLASSES)[:, None]
    assert_parity(lambda split: classifier(split, **arguments), x, y, DATA_AND_TENSOR, sample_weight=weights)


def test_mixed_precision() -> None:
    # As in test_dense: partial sums are rounded to 8 bits before they are added.
    x, y = vectors(), labels(NUM_CLASSES)
    assert_parity(classifier, x, y, {"tensor": 2}, dtype_policy="mixed_bfloat16", tolerance=3e-2)


def test_predicts_whole_logits() -> None:
    with mesh_strategy(DATA_AND_TENSOR).scope():
        model = classifier(True)
    expected = model(vectors()).whole()
    for settings in ({}, {"run_eagerly": True}, {"steps_per_execution": 2}):
        model.compile(loss=model.loss, **settings)
        np.testing.assert_allclose(model.predict(vectors(), batch_size=14, verbose=0), expected, atol=1e-6)
    np.testing.assert_allclose(model.predict_on_batch(vectors()), expected, atol=1e-6)


class TestValues:
    """Tests values without a model, on three shards of different sizes."""

    @pytest.fixture(autouse=True)
    def _mesh(self) -> Iterator[None]:
        with mesh_strategy({"tensor": 3}).scope():
            yield

    def pieces(self, logits: Any, sizes: Sequence[int] = (3, 3, 2)) -> SplitTensor:
        shards = Shards.present()
        return SplitTensor(shards.scatter(tf.convert_to_tensor(logits), -1, sizes), -1, shards)

    def assert_equal(self, y: Any, logits: Any, **kwargs: Any) -> None:
        found = []
        for split in (False, True):
            whole = tf.convert_to_tensor(logits)
            with tf.GradientTape() as tape:
                tape.watch(whole)
                loss = VocabParallelSparseCategoricalCrossentropy(**kwargs) if split else keras_loss(**kwargs)
                value = loss(y, self.pieces(whole) if split else whole)
            found.append((value, tape.gradient(value, whole)))
        np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6, atol=1e-6)

    def test_of_sequences(self) -> None:
        logits = np.random.default_rng(0).normal(0, 3, (5, 4, 8)).astype("float32")
        self.assert_equal(np.arange(20).reshape(5, 4) % 8, logits, reduction=None)

    def test_of_large_and_infinite_logits(self) -> None:
        logits = np.random.default_rng(0).normal(0, 300, (6, 8)).astype("float32") - 1e4
        logits[:2, 3:6] = -np.inf
        logits[2, [0, 7]] = -np.inf
        self.assert_equal(np.array([0, 7, 3, 4, 5, 6]), logits)

    # Before Keras 3.15, the gradients of Keras' own loss are NaN where it ignores rows of NaN.
    @needs_keras("3.15", "ignoring rows that are no numbers")
    def test_of_ignored_rows_that_are_no_numbers(self) -> None:
        logits = np.random.default_rng(0).normal(0, 300, (6, 8)).astype("float32")
        logits[3] = np.nan
        self.assert_equal(np.array([0, 7, 3, -1, 5, 6]), logits, ignore_class=-1)

    def test_a_label_of_no_class_is_not_a_number(self) -> None:
        logits = tf.zeros((3, 8))
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = VocabParallelSparseCategoricalCrossentropy(reduction=None)([7, 8, -1], self.pieces(logits))
        assert np.isnan(value).tolist() == [False, True, True]
        assert np.isnan(tape.gradient(value, logits)).any(-1).tolist() == [False, True, True]

    def test_of_equal_logits_the_first_counts(self) -> None:
        rng = np.random.default_rng(0)
        logits = rng.integers(-1, 2, (200, 8)).astype("float32") * rng.choice([0.0, 1.0, -1.0], (200, 1))
        logits = np.where(rng.random((200, 8)) < 0.2, np.float32(-0.0), logits.astype("float32"))
        y = rng.integers(0, 8, (200, 1))
        results = []
        for metric, y_pred in (
            (keras.metrics.SparseCategoricalAccuracy(), logits),
            (VocabParallelSparseCategoricalAccuracy(), self.pieces(logits)),
            (VocabParallelSparseCategoricalAccuracy(), logits),
        ):
            metric.update_state(y, y_pred, np.linspace(0, 1, 200))
            results.append(float(metric.result()))
        assert results == [results[0]] * 3
        assert 0 < results[0] < 0.5

    def test_pieces_along_another_dimension_are_joined(self) -> None:
        logits, y = np.random.default_rng(0).normal(0, 1, (8, 5)).astype("float32"), np.arange(8) % 5
        shards = Shards.present()
        pieces = SplitTensor(shards.scatter(tf.convert_to_tensor(logits), 0, [3, 3, 2]), 0, shards)
        assert VocabParallelSparseCategoricalCrossentropy()(y, pieces) == keras_loss()(y, logits)

    def test_labels_of_another_shape(self) -> None:
        for part in (
            VocabParallelSparseCategoricalCrossentropy(),
            VocabParallelSparseCategoricalAccuracy().update_state,
        ):
            with pytest.raises(ValueError, match=r"one-hot .* Received: labels of shape \(4, 8\)"):
                part(np.eye(8)[:4], self.pieces(np.zeros((4, 8), "float32")))


def test_no_tensor_of_all_classes_and_all_where_the_pieces_are() -> None:
    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        # 101 classes, in shards of 51 and 50.
        layer = VocabParallelReversibleEmbedding(101, 4, gather_output=False)
        layer.build()
        loss, metric = VocabParallelSparseCategoricalCrossentropy(), VocabParallelSparseCategoricalAccuracy()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = layer.reverse(x)
            value = loss(y, logits)
        metric.update_state(y, logits)
        return tape.gradient(value, layer.trainable_variables)

    specs = [tf.TensorSpec((None, 4)), tf.TensorSpec((None,), tf.int32)]
    graph = tf.function(lambda *args: strategy.run(step, args)).get_concrete_function(*specs).graph
    seen: dict[int, set[str]] = {}
    for operation in graph.get_operations():
        # TensorFlow makes zeros for outputs without a gradient, and prunes them, because nobody reads them.
        values = [] if operation.type in ("Placeholder", "ZerosLike", "Const") else operation.outputs
        for size in [size for value in values if value.shape.rank for size in value.shape.as_list()]:
            # A tensor without a device is a variable's value, which is read on the variable's device.
            if size and size > 49 and operation.device:
                seen.setdefault(size, set()).add(operation.device[-5:])
    assert seen == {51: {"CPU:0"}, 50: {"CPU:1"}}


class TestWithoutAMesh:
    def test_is_keras_loss(self) -> None:
        with pytest.raises(ValueError, match="Drop the softmax"):
            VocabParallelSparseCategoricalCrossentropy(from_logits=False)
        loss = VocabParallelSparseCategoricalCrossentropy(ignore_class=3, reduction="sum", name="a")
        again = VocabParallelSparseCategoricalCrossentropy.from_config(loss.get_config())
        assert again.get_config() == keras_loss(ignore_class=3, reduction="sum", name="a").get_config()
        model, plain = classifier(True), classifier(False)
        plain.set_weights(model.get_weights())
        y = labels(NUM_CLASSES)
        assert model.evaluate(vectors(), y, verbose=0) == plain.evaluate(vectors(), y, verbose=0)
