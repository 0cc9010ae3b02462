"""Models with split layers of all kinds, and the programs that train them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_ext
from keras_ext.tensor.channelwise import ChannelSplitBatchNormalization, ShardwiseActivation
from tests.strategies.parity.harness import fit_arrays

VOCABULARY, UNITS, HEADS = 21, 8, 4

Make = Callable[[bool], Any]
Run = Callable[[Any, Any], Mapping[str, Any]]


def momentum() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def squaring() -> Any:
    """Returns an optimizer that squares each slice of a table's gradient by itself."""
    return keras.optimizers.Adam(5e-3, epsilon=1e-3)


def features(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((17, *shape)).astype("float32")


def classes(number: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, number, (17, *shape))


@keras.saving.register_keras_serializable("tests")
def near_the_mean(weight: Any) -> Any:
    """Returns a weight closer to its mean: a constraint that needs the whole weight."""
    return 0.9 * weight + 0.1 * keras.ops.mean(weight)


def penalized(split: bool) -> keras.Model:
    """Returns a model with penalties of weights, activations in shards and whole tensors, and with constraints."""
    column = keras_ext.ColumnParallelDense if split else layers.Dense
    row = keras_ext.RowParallelDense if split else layers.Dense
    activation = ShardwiseActivation if split else layers.Activation
    apart = {"gather_output": False} if split else {}
    model = keras.Sequential(
        [
            keras.Input((6,)),
            column(
                8,
                "tanh",
                kernel_regularizer=keras.regularizers.L1L2(1e-2, 1e-2),
                bias_constraint=keras.constraints.NonNeg(),
                activity_regularizer=keras.regularizers.L2(1e-2),
                **apart,
            ),
            activation("relu", activity_regularizer=keras.regularizers.L1(1e-2)),
            row(
                4,
                kernel_regularizer=keras.regularizers.OrthogonalRegularizer(1e-2),
                kernel_constraint=keras.constraints.MaxNorm(0.8, axis=0),
                activity_regularizer=keras.regularizers.L2(1e-2),
            ),
            column(8, "softmax", kernel_constraint=keras.constraints.MaxNorm(0.8, axis=0)),
            row(4, kernel_constraint=near_the_mean),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss, metrics=["accuracy"])
    return model


def language_model(split: bool, length: int | None = 7) -> keras.Model:
    """Returns a model of a tied table around a decoder; if split, logits and sequence are in uneven shards."""
    own = {"gather_output": False} if split else {}
    cls = keras_ext.VocabParallelReversibleEmbedding if split else layers.ReversibleEmbedding
    table = cls(VOCABULARY, UNITS, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.5), **own)
    ids = keras.Input((length,), dtype="int32")
    x = table(ids)
    if split:
        x = keras_ext.ParallelTransformerBlock(UNITS, HEADS, 16, "decoder", sequence_parallel=True)(x)
    else:
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(HEADS, UNITS // HEADS)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        # The layers are created in the order of the computation, in which they draw seeds.
        y = layers.Dense(16, "gelu")(y)
        y = layers.Dense(UNITS)(y)
        x = layers.Add()([x, y])
    x = (keras_ext.ShardwiseLayerNormalization if split else layers.LayerNormalization)()(x)
    model = keras.Model(ids, table(x, reverse=True))
    losses: Any = keras_ext if split else keras.losses
    metrics: Any = keras_ext if split else keras.metrics
    prefix = "VocabParallel" if split else ""
    loss = getattr(losses, f"{prefix}SparseCategoricalCrossentropy")(from_logits=True, ignore_class=3)
    accuracy = getattr(metrics, f"{prefix}SparseCategoricalAccuracy")()
    model.compile(momentum(), loss, metrics=[accuracy])
    return model


def of_lengths(model: Any, strategy: Any) -> Mapping[str, Any]:
    """Trains on sentences of 7, then of 6, then of 5 words, in one program."""

    def batches() -> Any:
        for number in (7, 6, 5, 7):
            words = np.random.default_rng(number).integers(0, VOCABULARY, (6, number + 1)).astype("int32")
            yield words[:, :-1], words[:, 1:]

    spec = tf.TensorSpec((6, None), tf.int32)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(4))
    return dict(model.fit(dataset, shuffle=False, verbose=0).history)


def images(split: bool) -> keras.Model:
    """Returns a model of convolutions, normalized in shards and whole, with a different split for each dense layer."""
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(8, 3, padding="same", name="first")(inputs)
    x = layers.BatchNormalization(synchronized=True, name="in_pieces")(x)
    x = layers.ReLU(name="relu")(x)
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.Conv2D(6, 3, padding="same", name="second")(x)
    x = layers.BatchNormalization(synchronized=True, name="whole")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    x = layers.Dense(8, "relu", name="hidden")(x)
    model = keras.Model(inputs, layers.Dense(5, name="head")(x))
    model = keras_ext.parallelize(model) if split else model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss, metrics=["accuracy"])
    return model


def attended(split: bool) -> keras.Model:
    """Returns a model of attention with penalized projections, whose scores are outputs, and of grouped attention."""
    embedding = keras_ext.VocabParallelEmbedding if split else layers.Embedding
    attention = keras_ext.ParallelMultiHeadAttention if split else layers.MultiHeadAttention
    grouped = keras_ext.ParallelGroupQueryAttention if split else layers.GroupQueryAttention
    ids = keras.Input((5,), dtype="int32")
    table = embedding(VOCABULARY, UNITS, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.5))
    x = table(ids)
    y, scores = attention(HEADS, 2, activity_regularizer=keras.regularizers.L2(1e-2))(
        x, x, return_attention_scores=True
    )
    y = grouped(2, 4, 4)(y, x)
    pooled = layers.GlobalAveragePooling1D()(y)
    output = layers.Dense(3)(layers.Concatenate()([pooled, layers.Flatten()(scores)]))
    model = keras.Model(ids, output)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss, metrics=["accuracy"])
    return model


def whole_batch_normalization(split: bool) -> keras.Model:
    """Returns a model with batch normalization by channel shards of a tensor that is not split."""
    cls = ChannelSplitBatchNormalization if split else layers.BatchNormalization
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8), cls(synchronized=True), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss)
    return model


@keras.saving.register_keras_serializable("tests")
class Bank(layers.Layer):
    """Has weights with two and three dims; one of them is not trained, two are looked up."""

    def build(self, x_shape: Any, given_shape: Any) -> None:
        penalty, cap = keras.regularizers.L2(1e-2), keras.constraints.MaxNorm(0.9, axis=0)
        self.bank = self.add_weight(shape=(3, x_shape[-1], 5), name="bank", regularizer=penalty)
        self.back = self.add_weight(shape=(5, x_shape[-1]), name="back", constraint=cap)
        self.fixed = self.add_weight(shape=(x_shape[-1], 6), name="fixed", trainable=False)
        # `by_rows` is split along rows, `by_columns` along columns.
        self.by_rows = self.add_weight(shape=(10, x_shape[-1]), name="by_rows", initializer="uniform")
        self.by_columns = self.add_weight(shape=(2, x_shape[-1]), name="by_columns", initializer="uniform")
        self.inside = layers.Dense(x_shape[-1])
        self.inside.build(x_shape)

    def call(self, x: Any, given: Any) -> Any:
        y = keras.ops.mean(keras.ops.einsum("abc,ecd->abed", x, self.bank), axis=2)
        self.add_loss(1e-2 * keras.ops.sum(keras.ops.square(self.back)))
        ids = keras.ops.cast(keras.ops.abs(given[:, :, 0]) * 20, "int32") % 10
        rows, columns = (
            keras.ops.take(self.by_rows, ids, axis=0),
            keras.ops.take(self.by_columns, [0, 1, 1, 1, 0, 1], axis=0),
        )
        return self.inside(keras.ops.matmul(y, self.back) + rows + columns) + keras.ops.mean(self.fixed)


def gathered(split: bool) -> keras.Model:
    """Returns a model of layers with sharded weights, gathered for use or multiplied shard by shard."""
    x = inputs = keras.Input((6, 4))
    x = layers.Conv1D(6, 3, padding="same", kernel_regularizer=keras.regularizers.L1(1e-2), name="conv")(x)
    # Two and three heads of five: uneven shards along every dim.
    x = layers.EinsumDense("abc,cde->abde", (None, 3, 5), bias_axes="de", activation="tanh", name="to_heads")(x)
    x = layers.EinsumDense("abde,dec->abc", (None, 6), bias_axes="c", name="from_heads")(x)
    x = Bank(name="own")(x, inputs)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
    model = keras_ext.parallelize(model) if split else model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(squaring(), loss, metrics=["accuracy"])
    return model


def adapted(split: bool) -> keras.Model:
    """Returns a model of frozen kernels, split along their last dim and along others, and adapters."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8, name="table")(inputs)
    x = layers.MultiHeadAttention(4, 2, name="attention")(x, x)
    x = layers.Dense(8, name="down")(layers.Dense(16, "gelu", kernel_regularizer="l2", name="up")(x))
    x = layers.EinsumDense("abc,cde->abde", (5, 2, 4), bias_axes="de", name="to_heads")(x)
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3, b_initializer=keras.initializers.RandomNormal(0.0, 0.1))
    model = keras_ext.parallelize(model) if split else model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(squaring(), loss, metrics=["accuracy"])
    return model


def _fit(x: Any, y: Any, *, predict: bool = True) -> Run:
    return fit_arrays(x, y, batch_size=12, epochs=2, predict=predict)


# One more than the model's length: a word's label is the next word. Large logits are compared through their loss.
_WORDS = classes(VOCABULARY, 8).astype("int32")

MODELS: Mapping[str, tuple[Make, Run]] = {
    "adapters": (adapted, _fit(_WORDS[:, :5], classes(3))),
    "gathered": (gathered, _fit(features(6, 4), classes(3))),
    "penalties": (penalized, _fit(features(6), classes(4))),
    "language model": (language_model, _fit(_WORDS[:, :-1], _WORDS[:, 1:], predict=False)),
    "unknown lengths": (functools.partial(language_model, length=None), of_lengths),
    "images": (images, _fit(features(6, 6, 2), classes(5))),
    "attention": (attended, _fit(_WORDS[:, :5], classes(3))),
    "whole batch normalization": (whole_batch_normalization, _fit(features(8), classes(3))),
}
