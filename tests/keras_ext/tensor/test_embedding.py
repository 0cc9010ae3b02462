"""VocabParallelEmbedding and VocabParallelReversibleEmbedding: the results of Keras' embeddings, from shards."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ext.tensor.dense import ColumnParallelDense
from keras_ext.tensor.embedding import VocabParallelEmbedding, VocabParallelReversibleEmbedding
from keras_ext.tensor.losses import VocabParallelSparseCategoricalAccuracy, VocabParallelSparseCategoricalCrossentropy
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS

DATA_AND_TENSOR = {"data": 2, "tensor": 2}
# Not divisible by 2 or 4 shards, and small enough that an id occurs many times in a batch.
VOCABULARY = 11
Optimizer = Callable[[], keras.Optimizer]


def tokens(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (NUM_ROWS, 3)).astype("int32")


def compiled(split: bool, inputs: Any, outputs: Any, optimizer: Optimizer | None = None) -> keras.Model:
    model = keras.Model(inputs, outputs)
    if split:
        loss: Any = VocabParallelSparseCategoricalCrossentropy()
        metric: Any = VocabParallelSparseCategoricalAccuracy()
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalAccuracy()
    made = keras.optimizers.Adam(0.01, global_clipnorm=0.5) if optimizer is None else optimizer()
    model.compile(made, loss, weighted_metrics=[metric])
    return model


def language_model(split: bool, optimizer: Optimizer | None = None, **kwargs: Any) -> keras.Model:
    embedding = VocabParallelEmbedding if split else keras.layers.Embedding
    ids = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Dense(4, activation="tanh")(embedding(VOCABULARY, 4, **kwargs)(ids))
    head = ColumnParallelDense(12, gather_output=False) if split else keras.layers.Dense(12)
    return compiled(split, ids, head(hidden), optimizer)


def reversible_model(split: bool, *, gather: bool = False, **kwargs: Any) -> keras.Model:
    if split:
        layer: Any = VocabParallelReversibleEmbedding(VOCABULARY, 4, gather_output=gather, **kwargs)
    else:
        layer = keras.layers.ReversibleEmbedding(VOCABULARY, 4, **kwargs)
    ids = keras.Input((3,), dtype="int32")
    return compiled(split, ids, layer(keras.layers.Dense(4, activation="tanh")(layer(ids)), reverse=True))


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
class TestParity:
    def test_embedding(self, axes: Mapping[str, int]) -> None:
        assert_parity(language_model, tokens(), tokens(1), axes, predict=True)

    def test_tied_projection(self, axes: Mapping[str, int]) -> None:
        assert_parity(reversible_model, tokens(), tokens(1), axes)


# Keras squares each slice of a sparse gradient separately, so shards must pass on the same slices.
OPTIMIZERS: Mapping[str, Optimizer] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "SGD, momentum, clipvalue": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.01),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "RMSprop, accumulation": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(optimizer: Optimizer) -> None:
    assert_parity(lambda split: language_model(split, optimizer), tokens(), tokens(1), DATA_AND_TENSOR)


ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "mask": {"mask_zero": True},
    "initializer": {"embeddings_initializer": keras.initializers.Orthogonal(seed=3)},
    "weights": {"weights": np.linspace(-1, 1, VOCABULARY * 4, dtype="float32").reshape(VOCABULARY, 4)},
    "additive regularizer": {"embeddings_regularizer": "l2"},
    "regularizer of a whole": {"embeddings_regularizer": keras.regularizers.OrthogonalRegularizer(0.01)},
    "constraint by norms of columns": {"embeddings_constraint": keras.constraints.MaxNorm(0.2)},
    "constraint by norms of rows": {"embeddings_constraint": keras.constraints.UnitNorm(axis=1)},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_plain_layer(arguments: dict[str, Any]) -> None:
    assert_parity(lambda split: language_model(split, **arguments), tokens(), tokens(1), DATA_AND_TENSOR)


REVERSIBLE: Mapping[str, dict[str, Any]] = {
    "gathered": {"gather": True},
    "not tied": {"tie_weights": False, "embeddings_regularizer": "l2"},
    "soft cap, mask": {"logit_soft_cap": 0.1, "mask_zero": True},
    "reverse dtype": {"reverse_dtype": "float64"},
}


@pytest.mark.parametrize("arguments", REVERSIBLE.values(), ids=REVERSIBLE)
def test_arguments_of_the_plain_reversible_layer(arguments: dict[str, Any]) -> None:
    def make(split: bool) -> keras.Model:
        return reversible_model(split, **{k: v for k, v in arguments.items() if split or k != "gather"})

    assert_parity(make, tokens(), tokens(1), DATA_AND_TENSOR)


@pytest.mark.parametrize("make", [language_model, reversible_model])
def test_mixed_precision(make: Callable[[bool], Any]) -> None:
    # Shards round their parts of the gradient of the projection's input to 8 bits, one device rounds the sum.
    assert_parity(make, tokens(), tokens(1), {"tensor": 2}, dtype_policy="mixed_bfloat16", tolerance=3e-2)


def test_sample_weights() -> None:
    weights = np.linspace(0, 2, NUM_ROWS * 3, dtype="float32").reshape(NUM_ROWS, 3)
    assert_parity(language_model, tokens(), tokens(1), DATA_AND_TENSOR, sample_weight=weights)


class TestIds:
    def test_shards_hold_rows_and_no_padding(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            layer = VocabParallelEmbedding(VOCABULARY, 4)
            layer.build()
        assert [shard.shape for shard in layer.embeddings.shards] == [(3, 4), (3, 4), (3, 4), (2, 4)]
        assert [shard.value.device[-5:] for shard in layer.embeddings.shards] == [f"CPU:{i}" for i in range(4)]

    def test_out_of_range_as_in_keras(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            layer = VocabParallelEmbedding(VOCABULARY, 4)
            np.testing.assert_array_equal(layer(np.array([-1, -11])), layer.embeddings.numpy()[[-1, -11]])
            for beyond in (-VOCABULARY - 1, VOCABULARY):
                with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
                    layer(np.array([beyond]))

    def test_of_other_types(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            layer = VocabParallelEmbedding(VOCABULARY, 4)
            rows = layer(np.arange(VOCABULARY)).numpy()
            for dtype in ("uint8", "int64", "float32"):
                np.testing.assert_array_equal(layer(np.array([[3, 10]], dtype)), rows[[[3, 10]]])
            with pytest.raises(ValueError, match=r"Pad ragged ids.* Received: RaggedTensor"):
                layer(tf.ragged.constant([[1, 2], [3]]))


def test_gradients_of_rows_are_sparse_and_where_the_rows_are() -> None:
    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        layer = VocabParallelEmbedding(VOCABULARY, 4)
        layer.build()

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            total = keras.ops.sum(layer(tokens()))
        return tape.gradient(total, layer.trainable_variables)

    found = strategy.run(gradients)
    assert [(type(g), g.values.device[-5:]) for g in found] == [(tf.IndexedSlices, f"CPU:{i}") for i in range(2)]


def test_a_file_opens_in_keras(tmp_path: pathlib.Path) -> None:
    for make, plain in ((language_model, keras.layers.Embedding), (reversible_model, keras.layers.ReversibleEmbedding)):
        with mesh_strategy({"tensor": 2}).scope():
            model = make(True)
            model.fit(tokens(), tokens(1), verbose=0)
        model.save(tmp_path / "model.keras")
        opened = keras.models.load_model(tmp_path / "model.keras")
        assert [type(layer) for layer in opened.layers if hasattr(layer, "embeddings")] == [plain]
        assert type(opened.loss) is keras.losses.SparseCategoricalCrossentropy
        assert opened.loss.get_config() == model.loss.get_config()
        expected = model.predict(tokens(), verbose=0)
        np.testing.assert_allclose(opened.predict(tokens(), verbose=0), expected, atol=1e-6)
        assert opened.evaluate(tokens(), tokens(1), verbose=0) == pytest.approx(
            model.evaluate(tokens(), tokens(1), verbose=0), abs=1e-6
        )


class TestRefusals:
    def test_fewer_rows_than_shards(self) -> None:
        with mesh_strategy({"tensor": 4}).scope(), pytest.raises(ValueError, match="Received: input_dim=3"):
            VocabParallelEmbedding(3, 4).build()

    @pytest.mark.parametrize("layer", [VocabParallelEmbedding, VocabParallelReversibleEmbedding])
    def test_quantization(self, layer: Any) -> None:
        with pytest.raises(ValueError, match="quantization"):
            layer(8, 4, dtype="int8_from_float32")
        made = layer(8, 4)
        made.build()
        with pytest.raises(ValueError, match="int8"):
            made.quantize("int8")


class TestWithoutAMesh:
    def test_is_an_embedding(self) -> None:
        keras.utils.set_random_seed(1)
        plain = keras.layers.ReversibleEmbedding(VOCABULARY, 4)
        keras.utils.set_random_seed(1)
        split = VocabParallelReversibleEmbedding(VOCABULARY, 4, gather_output=False)
        rows = plain(tokens())
        np.testing.assert_array_equal(split(tokens()), rows)
        logits = split.reverse(rows)
        assert isinstance(logits, SplitTensor)
        np.testing.assert_array_equal(logits.whole(), plain(rows, reverse=True))

    def test_knows_its_own_arguments(self) -> None:
        layer = VocabParallelReversibleEmbedding(8, 4, gather_output=False, tie_weights=False, mask_zero=True, name="a")
        again = VocabParallelReversibleEmbedding.from_config(layer.get_config())
        assert (again.name, again.gather_output, again.tie_weights, again.mask_zero) == ("a", False, False, True)
