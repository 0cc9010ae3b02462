"""Attention and feed-forward layers in the style of libraries, with what such layers do besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_ext

L = keras.layers
UNITS, LENGTH, HEADS, SIZE = 8, 5, 4, 4


class Attention(keras.Layer):
    """Attention to earlier positions, with fewer heads of keys than of queries, a norm of queries and a scale."""

    def __init__(self, num_key_value_heads: int = 2, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_query_heads, self.num_key_value_heads, self.dropout = HEADS, num_key_value_heads, dropout

    def build(self, shape: Any) -> None:
        def projection(equation: str, *dims: int, bias: str | None = None) -> Any:
            return L.EinsumDense(equation, (None, *dims), bias_axes=bias, dtype=self.dtype_policy)

        self._query = projection("bqm,muh->bquh", HEADS, SIZE, bias="uh")
        self._key = projection("bkm,mvh->bkvh", self.num_key_value_heads, SIZE)
        self._value = projection("bkm,mvh->bkvh", self.num_key_value_heads, SIZE, bias="vh")
        for each in (self._query, self._key, self._value):
            each.build(shape)
        self._out = projection("bquh,uhm->bqm", UNITS, bias="m")
        self._out.build((None, None, HEADS, SIZE))
        self._norm = L.RMSNormalization(dtype=self.dtype_policy)
        self._norm.build((None, None, HEADS, SIZE))
        self._drop = L.Dropout(self.dropout, seed=3, dtype=self.dtype_policy)
        self.scale = self.add_weight(shape=(SIZE,), initializer="ones", name="scale")
        self.built = True

    def call(
        self,
        x: Any,
        attention_mask: Any = None,
        cache: Any = None,
        cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        query, key, value = self._norm(self._query(x)), self._key(x), self._value(x)
        if cache is not None:
            start = [0, cache_update_index, 0, 0]
            key = ops.slice_update(cache[:, 0, ...], start, key)
            value = ops.slice_update(cache[:, 1, ...], start, value)
            cache = ops.stack((key, value), axis=1)
        groups = self.num_query_heads // self.num_key_value_heads
        key, value = (ops.repeat(each, groups, axis=2) for each in (key, value))
        scores = ops.einsum("bquh,bkuh->buqk", query * self.scale, key)
        scores = self.changed(scores, bool(training))
        positions = ops.arange(ops.shape(key)[1])
        earlier = positions[None, :] <= positions[: ops.shape(x)[1], None] + (cache_update_index or 0)
        if attention_mask is not None:
            earlier = ops.logical_and(earlier, attention_mask[:, None])
        scores = self._drop(ops.softmax(ops.where(earlier, scores, -1e9)), training=training)
        y = self._out(ops.einsum("buqk,bkuh->bquh", scores, value))
        return y if cache is None else (y, cache)

    def changed(self, scores: Any, training: bool) -> Any:
        """Returns scores, (batch, heads, queries, keys), as a subclass changes them."""
        return scores


class Slopes(Attention):
    """Adds a bias that depends on the number of a head, as ALiBi does."""

    def changed(self, scores: Any, training: bool) -> Any:
        return scores + ops.reshape(0.5 ** ops.arange(1.0, scores.shape[1] + 1), (-1, 1, 1)) * ops.arange(0.0, LENGTH)


class OverHeads(Attention):
    """Computes with the mean over all heads."""

    def changed(self, scores: Any, training: bool) -> Any:
        return scores + ops.mean(scores, axis=1, keepdims=True)


class Penalized(Attention):
    """Adds a loss, which each shard would add."""

    def changed(self, scores: Any, training: bool) -> Any:
        self.add_loss(1e-3 * ops.mean(scores**2))
        return scores


class Counting(Attention):
    """Writes a variable, which each shard would write."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="largest")

    def changed(self, scores: Any, training: bool) -> Any:
        self.largest.assign(ops.maximum(self.largest, ops.max(scores)))
        return scores


class Borrowing(Attention):
    """Uses a trained weight that Keras does not know to be the layer's."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.held = Hidden(keras.Variable(np.ones(SIZE, "float32"), name="borrowed"))

    def changed(self, scores: Any, training: bool) -> Any:
        return scores * ops.mean(self.held.value)


class Hidden:
    """Holds an object out of Keras' sight."""

    def __init__(self, value: Any) -> None:
        self.value = value


class InTraining(Attention):
    """Mixes heads in training only."""

    def changed(self, scores: Any, training: bool) -> Any:
        return scores + ops.mean(scores, axis=1, keepdims=True) if training else scores


class FeedForward(keras.Layer):
    """A gated feed-forward part, whose layers are attributes of the layer that computes other things, too."""

    def __init__(self, between: Callable[[Any, Any], Any], attention: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.between, self.attention = between, attention

    def build(self, shape: Any) -> None:
        names = self.between.__code__.co_names
        self.up, self.down = L.Dense(12, use_bias=False), L.Dense(shape[-1])
        self.up.build(shape)
        self.down.build((*shape[:-1], 12))
        if self.attention is not None:
            self.attention.build(shape)
        if "gate" in names:
            self.gate = L.Dense(12)
            self.gate.build(shape)
        if "scale" in names:
            self.scale = self.add_weight(shape=(12,), initializer="ones", name="scale")
        if "number" in names:
            self.number = self.add_weight(shape=(), initializer="ones", name="number")
        self.built = True

    def call(self, x: Any) -> Any:
        x = x if self.attention is None else x + self.attention(x)
        return x + self.down(self.between(self, x))


BETWEEN: dict[str, Callable[[Any, Any], Any]] = {
    "gated": lambda layer, x: ops.silu(layer.gate(x)) * layer.up(x) * 0.5,
    "cast": lambda layer, x: ops.cast(ops.tanh(ops.cast(layer.gate(x), "float32")), "float32") + layer.up(x),
    # The others are not computed by pieces.
    "softmax": lambda layer, x: ops.softmax(layer.gate(x)) * layer.up(x),
    "scaled": lambda layer, x: layer.gate(x) * layer.scale + layer.up(x),
    "listed": lambda layer, x: ops.multiply(layer.gate(x), [0.5] * 12) + layer.up(x),
    "clipped": lambda layer, x: ops.clip(layer.gate(x), -1.0, np.linspace(0.1, 1.0, 12)) + layer.up(x),
    "number": lambda layer, x: layer.gate(x) * layer.number + layer.up(x),
    "shifted": lambda layer, x: ops.roll(layer.gate(x), 1, axis=-1) * layer.up(x),
    "used twice": lambda layer, x: layer.up(x) + ops.mean(layer.up(x), axis=-1, keepdims=True),
}
#: The functions between whose parts are computed at each shard.
BY_PIECES = ("gated", "cast")


def compiled(make_layer: Callable[[], Any], split: bool) -> Any:
    """Returns a classifier of sequences, split if asked for, and compiled."""
    x = keras.Input((LENGTH, UNITS))
    y = L.GlobalAveragePooling1D()(make_layer()(x))
    model = keras.Model(x, L.Dense(3, activation="softmax")(y))
    if split:
        model = keras_ext.parallelize(model)
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def sequences(num_rows: int) -> np.ndarray:
    """Returns random sequences, ``(num_rows, LENGTH, UNITS)``."""
    return np.random.default_rng(1).normal(size=(num_rows, LENGTH, UNITS)).astype("float32")
