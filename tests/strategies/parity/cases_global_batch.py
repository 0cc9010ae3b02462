"""Parity of batch-dependent values other than gradients: losses, metrics, logs, state, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import strategies
from tests.strategies.parity.harness import Case, Logs, Model, fit_arrays, labels, targets, vectors

Step = Callable[[Any, Any, Any], dict[str, Any]]


def network(middle: Any = None, *, outputs: int = 1, activation: str | None = "sigmoid", cls: Any = keras.Model) -> Any:
    """Returns a model of a dense layer, the middle, and a dense layer."""
    start = keras.initializers.GlorotUniform
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(7, "tanh", kernel_initializer=start(3))(inputs)
    hidden = hidden if middle is None else middle(hidden)
    return cls(inputs, keras.layers.Dense(outputs, activation, kernel_initializer=start(4))(hidden))


def compiled(
    loss: Any = "mse", middle: Any = None, outputs: int = 1, activation: Any = "sigmoid", metrics: Any = ()
) -> Any:
    """Returns a maker of a network with a loss, a layer class in the middle, and metrics."""

    def make() -> Model:
        model = network(None if middle is None else middle(), outputs=outputs, activation=activation)
        own = [metric() if isinstance(metric, type) else metric for metric in metrics]
        model.compile(keras.optimizers.SGD(0.05), loss, metrics=own)
        return model

    return make


def stepping(step: Step) -> Any:
    """Returns a maker of a network that trains by Keras' step and returns more logs."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return {**super().train_step(data), **step(self, *data)}

    def make() -> Model:
        model = network(cls=Own)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    return make


def descending(loss_of: Callable[[Any, Any, Any], Any]) -> Any:
    """Returns a maker of a network that trains by a loss of its own step."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(self, *data)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def make() -> Model:
        model = network(outputs=3, activation=None, cls=Own)
        model.compile(keras.optimizers.SGD(0.05))
        return model

    return make


def is_positive() -> np.ndarray:
    """Returns labels 0 and 1 of shape (45, 1)."""
    return (targets() > 0).astype("float32")


# ---- losses and metrics


def root_of_mean(y: Any, p: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(y - p)))


def f1(y: Any, p: Any) -> Any:
    found = ops.cast(p > 0.5, "float32")
    return 2 * ops.sum(found * y) / (ops.sum(found) + ops.sum(y) + 1e-6)


def largest_error(y: Any, p: Any) -> Any:
    return ops.max(ops.abs(y - p))


def rank_correlation(y: Any, p: Any) -> Any:
    ranks = ops.cast(ops.argsort(ops.argsort(ops.reshape(p, [-1]))), "float32")
    one, other = ranks - ops.mean(ranks), ops.reshape(y, [-1]) - ops.mean(y)
    return ops.sum(one * other) / ops.sqrt(ops.sum(one * one) * ops.sum(other * other) + 1e-6)


def balanced(y: Any, p: Any) -> Any:
    """Returns errors of rows, weighted by how rare their label is in the batch."""
    share = ops.mean(y)
    weights = ops.where(y > 0.5, 0.5 / (share + 1e-3), 0.5 / (1 - share + 1e-3))
    return ops.mean(weights * ops.square(y - p), axis=-1)


def contrastive(y: Any, p: Any) -> Any:
    """Returns a number for each row, from its likeness to all others (supervised contrastive loss)."""
    z = p / ops.norm(p, axis=1, keepdims=True)
    likeness = ops.matmul(z, ops.transpose(z)) / 0.5
    alike = ops.cast(ops.equal(y, ops.transpose(y)), "float32")
    logs = likeness - ops.logsumexp(likeness, axis=1, keepdims=True)
    return -ops.sum(logs * alike, axis=1) / ops.sum(alike, axis=1)


class CountOfHits(keras.metrics.Metric):
    """Counts outputs above a half, and steps."""

    def __init__(self, name: str = "hits") -> None:
        super().__init__(name=name)
        self.hits = self.add_weight(shape=(), initializer="zeros", name="hits")
        self.steps = self.add_weight(shape=(), initializer="zeros", name="steps")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.hits.assign_add(ops.sum(ops.cast(y_pred > 0.5, "float32")))
        self.steps.assign_add(1.0)

    def result(self) -> Any:
        return self.hits / ops.maximum(self.steps, 1.0)


# ---- logs and trackers


def logs_of_each_kind(model: Any, x: Any, y: Any) -> dict[str, Any]:
    return {
        "rows": tf.shape(x)[0],
        "items": tf.size(x),
        "positive": tf.reduce_sum(tf.cast(y > 0, tf.int32)),
        "square": tf.reduce_mean(tf.square(x)),
        "largest": tf.reduce_max(x),
        "smallest": tf.reduce_min(x),
        "any": tf.reduce_any(x > 2.5),
    }


def with_trackers() -> Model:
    class Tracks(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.mean, self.rows = keras.metrics.Mean(name="mean"), keras.metrics.Mean(name="of_rows")
            self.total = keras.metrics.Sum(name="total")

        def train_step(self, data: Any) -> Any:
            x, y = data
            logs = super().train_step(data)
            self.mean.update_state(ops.mean(ops.square(x)))
            self.rows.update_state(x[:, 0])
            self.total.update_state(ops.sum(y))
            return {**logs, **{each.name: each.result() for each in (self.mean, self.rows, self.total)}}

    model = network(cls=Tracks)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


# ---- state


@keras.saving.register_keras_serializable("parity")
class Statistics(keras.layers.Layer):
    """Keeps numbers of each kind about its inputs."""

    def build(self, input_shape: Any) -> None:
        def kept(name: str, shape: Any = (), **kwargs: Any) -> Any:
            return self.add_weight(shape=shape, name=name, initializer="zeros", trainable=False, **kwargs)

        self.rows, self.steps = kept("rows", dtype="int32"), kept("steps", dtype="int32")
        self.total, self.mean, self.count = kept("total"), kept("mean", input_shape[1:]), kept("count")
        self.declared, self.largest, self.histogram = (
            kept("declared", aggregation="sum"),
            kept("largest"),
            kept("h", (4,)),
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            number = ops.cast(ops.shape(x)[0], "float32")
            self.rows.assign_add(ops.shape(x)[0])
            self.steps.assign_add(1)
            self.total.assign_add(ops.sum(x))
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            self.count.assign(0.9 * self.count + 0.1 * number)
            self.declared.assign_add(ops.sum(x * x))
            self.largest.assign(ops.maximum(self.largest, ops.max(x)))
            bins = tf.cast(tf.clip_by_value((x[:, 0] + 1) * 2, 0, 3), tf.int32)
            ones = tf.ones_like(x[:, 0])
            self.histogram.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(self.histogram), bins[:, None], ones))
        return x


@keras.saving.register_keras_serializable("parity")
class Codebook(keras.layers.Layer):
    """Vector quantization (van den Oord et al., arXiv:1711.00937), by moving averages of counts and sums."""

    def build(self, input_shape: Any) -> None:
        start = keras.initializers.RandomNormal(seed=5)
        self.codes = self.add_weight(shape=(4, 7), name="codes", initializer=start, trainable=False)
        self.sizes = self.add_weight(shape=(4,), name="sizes", initializer="ones", trainable=False)
        self.sums = self.add_weight(shape=(4, 7), name="sums", initializer=start, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        distances = ops.sum(ops.square(x[:, None] - self.codes[None]), axis=-1)
        chosen = ops.one_hot(ops.argmin(distances, axis=1), 4)
        quantized = ops.matmul(chosen, self.codes)
        if training:
            self.sizes.assign(0.9 * self.sizes + 0.1 * ops.sum(chosen, axis=0))
            self.sums.assign(0.9 * self.sums + 0.1 * ops.matmul(ops.transpose(chosen), x))
            self.codes.assign(self.sums / (self.sizes[:, None] + 1e-3))
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(quantized) - x)))
        return x + ops.stop_gradient(quantized - x)


# ---- rows of all replicas


@keras.saving.register_keras_serializable("parity")
class MinibatchDeviation(keras.layers.Layer):
    """Minibatch standard deviation (Karras et al., arXiv:1710.10196): one more feature, the same for all rows."""

    def call(self, x: Any) -> Any:
        deviation = ops.mean(ops.sqrt(ops.var(strategies.gather_rows(x), axis=0) + 1e-6))
        return ops.concatenate([x, ops.zeros_like(x[:, :1]) + deviation], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], input_shape[1] + 1)


@keras.saving.register_keras_serializable("parity")
class Queue(keras.layers.Layer):
    """Keeps the last 20 rows, as MoCo does (He et al., arXiv:1911.05722)."""

    def build(self, input_shape: Any) -> None:
        self.rows = self.add_weight(shape=(20, 7), name="rows", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            newest = ops.stop_gradient(strategies.gather_rows(x))
            self.rows.assign(ops.concatenate([newest, self.rows], axis=0)[:20])
        return x


@keras.saving.register_keras_serializable("parity")
class SeededNoise(keras.layers.Layer):
    """Adds numbers from an int seed: each row has its own."""

    def call(self, x: Any) -> Any:
        mask = ops.cast(keras.random.uniform((8,), seed=3)[:7] > 0.2, "float32")
        return x * mask + 0.1 * keras.random.normal(ops.shape(x), seed=5)


def unit(x: Any) -> Any:
    return x / tf.norm(x, axis=1, keepdims=True)


def two_views(model: Any, x: Any, y: Any) -> Any:
    """Returns the loss of SimCLR (Chen et al., arXiv:2002.05709): each row is compared with the whole batch."""
    one = unit(strategies.gather_rows(model(x + 0.1)))
    other = unit(strategies.gather_rows(model(x * 0.9)))
    likeness = tf.matmul(one, other, transpose_b=True) / 0.3
    own = tf.range(tf.shape(one)[0])
    both = [tf.nn.sparse_softmax_cross_entropy_with_logits(own, each) for each in (likeness, tf.transpose(likeness))]
    return tf.reduce_mean(both[0]) + tf.reduce_mean(both[1])


def supervised(model: Any, x: Any, y: Any) -> Any:
    """Returns the supervised contrastive loss (Khosla et al., arXiv:2004.11362)."""
    z, kinds = unit(strategies.gather_rows(model(x))), strategies.gather_rows(y)
    others = 1.0 - tf.eye(tf.shape(z)[0])
    likeness = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * (1.0 - others)
    alike = tf.cast(tf.equal(kinds, tf.transpose(kinds)), tf.float32) * others
    logs = likeness - tf.reduce_logsumexp(likeness, axis=1, keepdims=True)
    return -tf.reduce_mean(tf.reduce_sum(logs * alike, axis=1) / tf.maximum(tf.reduce_sum(alike, axis=1), 1.0))


def average_of_ten(model: Any, x: Any, y: Any) -> Any:
    """Returns the loss of TensorFlow's tutorial: a number for each row, divided by a constant."""
    errors = tf.reduce_mean(tf.square(model(x) - y), axis=1)
    return tf.nn.compute_average_loss(errors, global_batch_size=10)


def fit_static(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Fits batches whose size is known when the step is traced."""
    dataset = tf.data.Dataset.from_tensor_slices((vectors(), targets())).batch(10, drop_remainder=True)
    history: Logs = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    return history


def fit_sparse(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
    """Fits rows of a sparse matrix, many of which have a column in common."""
    x = vectors() * (vectors() > 0.5)
    dataset = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), targets())).batch(14)
    history: Logs = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    return history


def of_sparse_rows() -> Model:
    inputs = keras.Input((6,), sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))(inputs))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


_FIT = fit_arrays(vectors(), is_positive())
_METRICS = [f1, largest_error, rank_correlation, CountOfHits]
CASES = [
    Case(
        "loss function that is a root; F1, largest error and ranks as metrics",
        compiled(root_of_mean, metrics=_METRICS),
        _FIT,
    ),
    Case("loss function that weighs rows by the batch", compiled(balanced), _FIT),
    Case("contrastive loss function", compiled(contrastive, outputs=3, activation=None), _FIT),
    Case("keras.losses.Dice", compiled(keras.losses.Dice()), _FIT),
    Case("logs of each kind", stepping(logs_of_each_kind), fit_arrays(vectors(), targets(), predict=False)),
    Case("trackers of means, sums and rows", with_trackers, fit_arrays(vectors(), targets(), predict=False)),
    Case("state of each kind that a layer keeps", compiled(middle=Statistics), _FIT),
    Case("VQ-VAE, codebook of moving averages", compiled(middle=Codebook), _FIT),
    Case("minibatch standard deviation, gather_rows", compiled(middle=MinibatchDeviation), _FIT),
    Case("queue of rows, gather_rows", compiled(middle=Queue), _FIT),
    Case("keras.random with ints for seeds", compiled(middle=SeededNoise), _FIT),
    Case("SimCLR, gather_rows", descending(two_views), fit_arrays(vectors(), labels(), predict=False)),
    Case("SupCon, gather_rows", descending(supervised), fit_arrays(vectors(), labels()[:, None], predict=False)),
    Case("sum over rows divided by the size of the global batch", descending(average_of_ten), fit_static),
    Case("sparse inputs, Adagrad", of_sparse_rows, fit_sparse),
]
