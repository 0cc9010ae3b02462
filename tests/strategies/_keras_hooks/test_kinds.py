"""Values that a step computes from rows, on two replicas and on one device: trackers, logs, layers, random numbers."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import strategies
from tests.releases import ignore_warning_of_numpy
from tests.strategies.parity.harness import features

#: An odd number of rows: the last batch has one row, which goes to the first replica.
X, Y = features(9, 4), features(9, 1, seed=1)
L = keras.layers


@pytest.fixture(autouse=True)
def fresh_registry() -> None:
    """Clears the record of lines in this file that have caused warnings."""
    globals().pop("__warningregistry__", None)


class Logging(keras.Model):
    """A model whose step also returns the values of `look` for its rows, and its trackers' results for them."""

    def __init__(self, look: Callable[[Any, Any], dict[str, Any]], trackers: dict[str, keras.Metric]) -> None:
        super().__init__()
        self.head = L.Dense(1, use_bias=False)
        self.look, self.trackers = look, trackers

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        for name, value in self.look(*data).items():
            if name in self.trackers:
                self.trackers[name].update_state(*(value if isinstance(value, tuple) else (value,)))
                logs[name] = self.trackers[name].result()
            else:
                logs[name] = value
        return logs


def trained(make: Callable[[], Any], strategy: Any, batch_size: int = 4, **compiled: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = make()
        model.compile(keras.optimizers.SGD(0.1), "mse", **compiled)
    history = model.fit(X, Y, batch_size=batch_size, shuffle=False, verbose=0).history
    weights = {f"weight {i}": np.asarray(weight) for i, weight in enumerate(model.get_weights())}
    return weights | {name: np.asarray(values) for name, values in history.items()}


def mirrored() -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])


def assert_equal(make: Callable[[], Any], **compiled: Any) -> None:
    plain, ours = trained(make, None, **compiled), trained(make, mirrored(), **compiled)
    assert plain.keys() == ours.keys()
    for name, wanted in plain.items():
        np.testing.assert_allclose(ours[name], wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def assert_said(make: Callable[[], Any], *parts: str, **compiled: Any) -> None:
    """Asserts that there is one warning, at a line of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ignore_warning_of_numpy()
        trained(make, mirrored(), **compiled)
    said = {(str(each.message), each.filename, each.lineno) for each in caught}
    assert len(said) == 1, said
    ((message, file, _),) = said
    assert file == __file__
    for part in (*parts, "replica", "strategies.gather_rows"):
        assert part in message


def numbers(x: Any, y: Any) -> dict[str, Any]:
    rows = ops.square(x[:, 0])
    return {
        "any": tf.reduce_any(x > 2),
        "argmax": ops.argmax(x, axis=1)[:, None] * 0 + tf.shape(x)[0] * 0,
        "count": tf.shape(x)[0],
        "every": tf.reduce_all(x > -2),
        "largest": ops.max(x),
        "least": ops.min(x, axis=0),
        "mean": ops.mean(rows),
        "numbers": tf.size(x),
        "sum": ops.sum(rows),
        "same": 3,
    }


@pytest.mark.parametrize("eagerly", [False, True])
def test_logs_are_those_of_the_batch(eagerly: bool) -> None:
    def last(x: Any, y: Any) -> dict[str, Any]:
        return {name: value for name, value in numbers(x, y).items() if name != "argmax"}

    assert_equal(lambda: Logging(last, {}), run_eagerly=eagerly)


def test_trackers_count_as_those_of_one_device() -> None:
    names = ("mean", "sum", "rows", "weighted", "constant", "count", "chosen", "vector", "penalty")

    def look(x: Any, y: Any) -> dict[str, Any]:
        rows = ops.square(x[:, 0])
        values = {
            "mean": ops.mean(rows),
            "sum": ops.sum(rows),
            "rows": rows,
            "weighted": (rows, ops.abs(x[:, 1])),
            "constant": (ops.mean(rows), 2.0),
            "count": tf.shape(x)[0],
            "chosen": tf.boolean_mask(rows, x[:, 1] > 0),
            "vector": ops.mean(x, axis=0),
            "penalty": 7.0,
        }
        return {f"{kind} of {name}": value for kind in ("mean", "sum") for name, value in values.items()}

    def make() -> Any:
        trackers: dict[str, Any] = {f"mean of {name}": keras.metrics.Mean(name=f"m_{name}") for name in names}
        return Logging(look, trackers | {f"sum of {name}": keras.metrics.Sum(name=f"s_{name}") for name in names})

    assert_equal(make)


def root_of(x: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(x)))


@pytest.mark.parametrize(
    ("look", "trackers", "said"),
    [
        (lambda x: {"root": root_of(x)}, {}, "'root', which a step returns, is neither a mean nor a sum"),
        (
            lambda x: {"median": ops.median(x[:, 0])},
            {},
            "'median', which a step returns, is made by operations that mix",
        ),
        (lambda x: {"drawn": tf.random.uniform(())}, {}, "'drawn', which a step returns, is made by each replica"),
        (
            lambda x: {"root": root_of(x)},
            {"root": keras.metrics.Mean},
            "tracker 'root' is given for a batch is neither",
        ),
        (lambda x: {"largest": ops.max(x)}, {"largest": keras.metrics.Sum}, "tracker 'largest' is given"),
    ],
    ids=["root", "median", "drawn", "tracked", "summed"],
)
def test_what_cannot_be_put_together_is_reported(look: Any, trackers: dict[str, Any], said: str) -> None:
    assert_said(
        lambda: Logging(lambda x, y: look(x), {name: metric(name=name) for name, metric in trackers.items()}), said
    )


class Mixes(keras.layers.Layer):
    """Applies a function that combines rows."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(name="mixes")
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


MIXING = {
    "centres": lambda x: x - ops.mean(x, 0, keepdims=True),
    "reverses": lambda x: x + ops.flip(x, 0),
    "rolls": lambda x: ops.roll(x, 1, axis=0),
    "softmax": lambda x: ops.softmax(x, axis=0),
    "sorts": lambda x: ops.sort(x, axis=0),
    "counts": lambda x: x * tf.cast(tf.shape(x)[0], x.dtype),
    "positions": lambda x: x + tf.one_hot(tf.range(tf.shape(x)[0]), 3),
    "turns": lambda x: tf.gather(x, (tf.range(tf.shape(x)[0]) + 1) % tf.shape(x)[0]),
    "shares": lambda x: x / tf.cast(tf.size(x), x.dtype),
    "deviation": lambda x: ops.concatenate([x, ops.ones_like(x) * ops.mean(ops.std(x, axis=0))], axis=1),
}


@pytest.mark.parametrize("name", MIXING)
def test_layers_that_mix_rows_are_said_and_found(name: str) -> None:
    def make() -> Any:
        return keras.Sequential(
            [keras.Input((4,)), L.Dense(3), L.BatchNormalization(), Mixes(MIXING[name]), L.Dropout(0.5), L.Dense(1)]
        )

    assert_said(make, "looks at several rows of the batch")
    strategy = mirrored()
    with strategy.scope():
        model = make()
    (finding,) = strategy.check(model)
    assert finding.layer.endswith("mixes")
    assert "What it computes for a row depends on other rows: each of 2 replicas has its own rows" in finding.difference
    assert f"({__file__}:" in finding.difference
    assert "strategies.gather_rows" in finding.fix
    with pytest.warns(strategies.DifferenceWarning, match="What a model predicts for a row looks at several rows"):
        model.predict(X, verbose=0)


def own_items(x: Any) -> Any:
    """Returns rows to which items are added that each row looks up by its own position."""
    count, largest = tf.shape(x)[0], tf.argmax(x, 1, "int32")
    by_tuple = tf.gather_nd(x, tf.stack([tf.range(count), largest], 1))
    of_flat = tf.gather(tf.reshape(x, [-1]), (3 * tf.range(count))[:, None] + [2, 1, 0])
    repeated = tf.reshape(tf.gather(x, tf.range(2 * count) // 2), [-1, 2, 3])
    return x + by_tuple[:, None] + 0.1 * of_flat + tf.reduce_mean(repeated, 1)


class Contrasts(keras.Model):
    """Takes the loss of SimCLR as published with TensorFlow: labels are the positions of rows in the global batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.Sequential([keras.Input((4,)), L.Dense(3), Mixes(own_items), L.Dense(2)])

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            one, other = tf.math.l2_normalize(self(x), 1), strategies.gather_rows(tf.math.l2_normalize(self(-x), 1))
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            labels = tf.one_hot(tf.range(tf.shape(one)[0]) + replica * tf.shape(one)[0], tf.shape(other)[0])
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, one @ tf.transpose(other)))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def test_positions_of_rows_may_be_used() -> None:
    assert_equal(Contrasts)


class MixUp(keras.Model):
    """A step that mixes each row with another."""

    def __init__(self) -> None:
        super().__init__()
        self.head = L.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        return super().train_step((0.7 * x + 0.3 * tf.gather(x, order), y))


def test_a_step_that_mixes_rows_is_reported() -> None:
    assert_said(MixUp, "looks at several rows of the batch")


class Draws(keras.Model):
    """A step with random numbers: for rows from an int seed, and for the gradient of a weight from a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.seeds = L.Dense(1), keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        rows = ops.shape(x)[0]
        x = x + keras.random.normal(ops.shape(x), seed=42)
        x = keras.random.dropout(x, 0.3, seed=43)
        shift = ops.cast(keras.random.randint((rows, 1), 0, 5, seed=44), "float32")
        chosen = ops.cast(keras.random.categorical(x, 1, seed=45), "float32")
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x + shift + chosen))
        (kernel, bias) = tape.gradient(loss, self.trainable_variables)
        kernel += 0.1 * keras.random.normal(kernel.shape, seed=self.seeds)
        kernel = keras.random.dropout(kernel, 0.5, seed=self.seeds)
        self.optimizer.apply_gradients(zip([kernel, bias], self.trainable_variables, strict=True))
        return {"loss": loss, "drawn": keras.random.uniform((), seed=self.seeds)}


@pytest.mark.parametrize("eagerly", [False, True])
def test_random_numbers_are_those_of_one_device(eagerly: bool) -> None:
    assert_equal(Draws, run_eagerly=eagerly)


@pytest.mark.parametrize(("seed", "num_replicas"), [(None, 2), (7, 1)])
def test_random_numbers_of_tensorflow(seed: int | None, num_replicas: int) -> None:
    """A seed of an op gives all replicas the same numbers; without one each has numbers of its own."""
    keras.utils.set_random_seed(3)
    with mirrored().scope():
        model = keras.Sequential([keras.Input((4,)), Mixes(lambda x: tf.random.normal(tf.shape(x), seed=seed))])
    drawn = model.predict(X[:8], batch_size=8, verbose=0)
    assert len(np.unique(drawn)) == num_replicas * 4 * 4
