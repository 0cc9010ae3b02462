"""The variables that a step of Keras' trainer writes have the global batch's values, or the line causes a warning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_ext
import strategies
from tests.strategies.parity.harness import features

X, Y = features(14, 3), features(14, 1, seed=1)

# The writes of a layer to its variable `v` of shape (3,) and its counter `n`, given rows x.


def deviation(x: Any) -> Any:
    """Returns a number whose terms are two sums of floats, and two numbers of int32."""
    count, size = tf.cast(tf.shape(x)[0], "float32"), tf.cast(tf.size(x), "float32")
    return tf.sqrt(tf.reduce_sum(x * x, 0) / count - tf.square(tf.reduce_sum(x) / size) + 1.0)


def reduced_again(x: Any) -> Any:
    """Returns numbers that ops with other names of their arguments in Python compute from statistics."""
    root = tf.sqrt(tf.reduce_mean(x * x, 0))
    parts = tf.concat(tf.split(tf.squeeze(tf.expand_dims(root, 0), [0]), [1, 2]), 0)
    return parts / tf.reduce_sum(root) + tf.reduce_max(root)


EQUAL: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda v, n, x: v.assign_add(ops.sum(x, 0)),
    "count": lambda v, n, x: n.assign_add(ops.shape(x)[0]),
    "count_of_floats": lambda v, n, x: v.assign(v + ops.cast(ops.shape(x)[0], "float32")),
    "same": lambda v, n, x: (n.assign_add(1), v.assign(0.5 * v + 1.0)),
    "mean": lambda v, n, x: v.assign(0.9 * v + 0.1 * ops.mean(x, 0)),
    "decayed_sum": lambda v, n, x: v.assign(0.9 * v + 0.1 * ops.sum(x, 0)),
    "subtracted": lambda v, n, x: v.assign_sub(ops.sum(x, 0)),
    "of_tensorflow": lambda v, n, x: (
        v.value.assign_add(tf.reduce_sum(x, 0)),
        n.value.assign_add(tf.reduce_sum(tf.cast(x > 0, "int32"))),
        v.value.assign_sub(tf.reduce_mean(x, 0)),
    ),
    "quotient": lambda v, n, x: v.assign(ops.sum(x * x, 0) / (1.0 + ops.sum(ops.abs(x), 0))),
    "moments": lambda v, n, x: v.assign(ops.sqrt(ops.mean(x * x, 0) - ops.square(ops.mean(x, 0)))),
    "deviation": lambda v, n, x: v.assign(deviation(x)),
    "reduced_again": lambda v, n, x: v.assign(reduced_again(x)),
    "positions": lambda v, n, x: n.assign_add(tf.reduce_sum(tf.range(tf.shape(x)[0]))),
    "maximum": lambda v, n, x: v.assign(ops.maximum(v, ops.max(x, 0))),
    "minimum": lambda v, n, x: v.assign(ops.minimum(v, ops.min(x, 0))),
    "scattered": lambda v, n, x: (
        v.value.scatter_add(tf.IndexedSlices(x[:, 0], tf.argmax(x, 1))),
        v.assign(tf.tensor_scatter_nd_add(v, tf.argmax(x, 1)[:, None], x[:, 1])),
        v.assign(v + tf.math.unsorted_segment_sum(x[:, 0], tf.argmax(x, 1), 3)),
        n.assign_add(tf.scatter_nd(tf.argmax(x, 1)[:, None], tf.argmin(x, 1, output_type="int32"), [3])[0]),
    ),
    "written_twice": lambda v, n, x: (v.assign_add(ops.mean(x, 0)), v.assign(0.1 * v * v), v.assign_add(ops.sum(x, 0))),
    "transposed_product": lambda v, n, x: v.assign(
        0.5 * v + ops.matmul(ops.transpose(x), x)[0] + tf.matmul(x, x, transpose_a=True)[1]
    ),
}
SAID: dict[str, Callable[[Any, Any, Any], Any]] = {
    "first_row": lambda v, n, x: v.assign(x[0]),
    "sorted": lambda v, n, x: v.assign(ops.sort(x, 0)[0]),
    "replaced_rows": lambda v, n, x: v.value.scatter_update(tf.IndexedSlices(x[:, 0], tf.argmax(x, 1))),
}


class Writes(keras.layers.Layer):
    """Writes its variables in training."""

    def __init__(self, write: Callable[[Any, Any, Any], Any], **weight: Any) -> None:
        super().__init__()
        self.write = write
        self.weight = weight

    def build(self, shape: Any) -> None:
        self.v = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="v", **self.weight)
        integers = {name: value for name, value in self.weight.items() if value != "mean"}
        self.n = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="n", **integers)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.write(self.v, self.n, x)
        return x


def model_of(writes: list[Writes], **compiled: Any) -> keras.Model:
    """Returns a model with parallel layers: one model, one trace, many writes."""
    inputs = keras.Input((3,))
    kept = keras.layers.Add()([layer(inputs) for layer in writes]) if len(writes) > 1 else writes[0](inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(kept))
    model.compile("sgd", "mse", **compiled)
    return model


def written(
    strategy: Any,
    cases: dict[str, Any],
    batch_size: int = 4,
    *,
    num_rows: int = 10,
    weight: Any = None,
    **compiled: Any,
) -> dict[str, list[Any]]:
    """Returns for each case the values of its layer's variables after training."""
    with strategy.scope():
        layers = [Writes(write, **weight or {}) for write in cases.values()]
        model = model_of(layers, **compiled)
    model.fit(X[:num_rows], Y[:num_rows], batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return {name: [layer.v.numpy(), layer.n.numpy()] for name, layer in zip(cases, layers, strict=True)}


def check_equal(got: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """Compares values; a failure names the case."""
    for name, values in expected.items():
        for one, other in zip(got[name], values, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def expected() -> dict[int, dict[str, list[Any]]]:
    """Returns the values on one device, by batch size."""
    return {size: written(tf.distribute.get_strategy(), EQUAL, size) for size in (3, 4, 5)}


def devices(number: int) -> Any:
    """Returns a strategy over logical devices."""
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(number)])


@pytest.mark.parametrize(
    ("number", "batch_size", "kwargs"),
    [
        (2, 4, {}),
        (2, 5, {}),  # static, uneven
        (4, 3, {}),  # replicas without rows
        (2, 4, {"run_eagerly": True}),
        (4, 3, {"run_eagerly": True}),
        (2, 4, {"steps_per_execution": 2}),
        (2, 4, {"jit_compile": True}),
        (2, 4, {"weight": {"aggregation": "sum"}}),
        (2, 4, {"weight": {"aggregation": "mean"}}),
    ],
    ids=["two", "static", "empty", "eager", "eager-empty", "multistep", "jit", "sum", "mean"],
)
def test_state_is_that_of_the_global_batch(
    number: int, batch_size: int, kwargs: dict[str, Any], expected: dict[int, dict[str, list[Any]]]
) -> None:
    check_equal(written(devices(number), EQUAL, batch_size, **kwargs), expected[batch_size])


# ---- writes that cannot be combined


def test_what_cannot_be_combined_is_reported_at_its_line() -> None:
    with pytest.warns(strategies.DifferenceWarning) as caught:
        written(devices(2), SAID)
    lines = {inspect.getsourcelines(write)[1] for write in SAID.values()}
    assert {each.lineno for each in caught} == lines
    assert all(each.filename == __file__ for each in caught)
    assert all("replica" in str(each.message) and "strategies.gather_rows" in str(each.message) for each in caught)


def test_branches_and_functions_of_their_own() -> None:
    def in_branch(v: Any, n: Any, x: Any) -> None:
        tf.cond(ops.sum(n) < 100, lambda: v.value.assign_add(tf.reduce_sum(x, 0)), lambda: v.value.read_value())

    def in_function(v: Any, n: Any, x: Any) -> None:
        tf.function(lambda rows: v.value.assign(0.5 * v.value + tf.reduce_sum(rows, 0)))(x)

    def largest_in_branch(v: Any, n: Any, x: Any) -> None:
        tf.cond(
            ops.sum(n) < 100,
            lambda: v.value.assign(tf.maximum(v.value, tf.reduce_max(x, 0))),
            lambda: v.value.read_value(),
        )

    cases = {"branch": in_branch, "function": in_function}
    check_equal(written(devices(2), cases, 3), written(tf.distribute.get_strategy(), cases, 3))
    with pytest.warns(strategies.DifferenceWarning, match="computes from its own rows"):
        written(devices(2), {"largest": largest_in_branch})


def test_declared_first_replica() -> None:
    case = {"first": lambda v, n, x: v.assign(x[0])}
    got = written(devices(2), case, 5, weight={"aggregation": "only_first_replica"})
    np.testing.assert_allclose(got["first"][0], X[5])


def test_state_of_loops_of_the_users_own_is_left_alone() -> None:
    strategy = devices(2)
    with strategy.scope():
        variable = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
        mean = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    rows = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors([1.0, 2.0]))))
    strategy.run(lambda x: (variable.assign_add(tf.reduce_sum(x)), mean.assign(tf.reduce_sum(x))), args=(rows,))
    assert (float(variable), float(mean)) == (3.0, 1.5)


# ---- metrics


class Keeps(keras.metrics.Metric):
    """Adds to its state what `change` computes from the rows; its result is the state."""

    def __init__(self, change: Callable[[Any, Any, Any], Any], name: str) -> None:
        super().__init__(name=name)
        self.change = change
        self.kept = self.add_weight(shape=(), initializer="zeros", name="kept")
        self.counted = self.add_weight(shape=(), initializer="zeros", dtype="int32", name="counted")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.change(self.kept, self.counted, y_true[:, 0])

    def result(self) -> Any:
        return self.kept + ops.cast(self.counted, "float32")


METRICS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sums": lambda kept, counted, y: (kept.assign_add(ops.sum(y)), counted.assign_add(ops.shape(y)[0])),
    "steps": lambda kept, counted, y: (kept.assign_add(1.0), counted.assign_add(7)),
    "means": lambda kept, counted, y: kept.assign(kept + ops.mean(y)),
    "decayed": lambda kept, counted, y: kept.assign(0.5 * kept + ops.sum(y)),
    "set": lambda kept, counted, y: kept.assign(ops.mean(y)),
    "mixed": lambda kept, counted, y: kept.assign_sub(ops.sum(y) + 7.0),
}
SAID_METRICS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "largest": lambda kept, counted, y: kept.assign(ops.maximum(kept, ops.max(y))),
    "product": lambda kept, counted, y: kept.assign(kept * ops.mean(y)),
    "first": lambda kept, counted, y: kept.assign_add(y[0]),
}


def evaluated(strategy: Any, metrics: dict[str, Any], batch_size: int = 4, **kwargs: Any) -> dict[str, Any]:
    """Returns the results of metrics over all rows."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=[Keeps(change, name) for name, change in metrics.items()], **kwargs)
    found = model.evaluate(X[:10], Y[:10], batch_size=batch_size, verbose=0, return_dict=True)
    return {name: [np.asarray(found[name])] for name in metrics}


@pytest.mark.parametrize(("number", "batch_size", "eager"), [(2, 4, False), (4, 3, False), (2, 5, True)])
def test_state_of_metrics(number: int, batch_size: int, eager: bool) -> None:
    expected = evaluated(tf.distribute.get_strategy(), METRICS, batch_size)
    check_equal(evaluated(devices(number), METRICS, batch_size, run_eagerly=eager), expected)


def test_state_of_metrics_that_is_no_sum_is_reported() -> None:
    with pytest.warns(strategies.DifferenceWarning, match="added up when the metric is read") as caught:
        evaluated(devices(2), SAID_METRICS)
    assert {each.lineno for each in caught} == {inspect.getsourcelines(change)[1] for change in SAID_METRICS.values()}


# ---- a published recipe


class Codebook(keras.layers.Layer):
    """A VQ-VAE's codebook by moving averages of counts and sums (van den Oord et al., 2017, appendix A.1)."""

    def build(self, shape: Any) -> None:
        start = keras.initializers.RandomNormal(seed=3)
        self.codes = self.add_weight(shape=(3, 5), initializer=start, trainable=False, name="codes")
        self.sizes = self.add_weight(shape=(5,), initializer="ones", trainable=False, name="sizes")
        self.sums = self.add_weight(shape=(3, 5), initializer=start, trainable=False, name="sums")

    def call(self, x: Any, training: bool = False) -> Any:
        distances = ops.sum(x**2, 1, keepdims=True) + ops.sum(self.codes**2, 0) - 2 * ops.matmul(x, self.codes)
        chosen = ops.one_hot(ops.argmin(distances, 1), 5)
        quantized = ops.matmul(chosen, ops.transpose(self.codes))
        if training:
            self.sizes.assign(0.9 * self.sizes + 0.1 * ops.sum(chosen, 0))
            self.sums.assign(0.9 * self.sums + 0.1 * ops.matmul(ops.transpose(x), chosen))
            n = ops.sum(self.sizes)
            smoothed = (self.sizes + 1e-5) / (n + 5e-5) * n
            self.codes.assign(self.sums / smoothed)
            self.add_loss(0.25 * ops.mean(ops.square(x - ops.stop_gradient(quantized))))
        return x + ops.stop_gradient(quantized - x)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_vqvae_with_a_codebook_of_moving_averages(number: int) -> None:
    found = []
    for strategy in (tf.distribute.get_strategy(), devices(number)):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            encoder = keras.layers.Dense(3, activation="tanh")
            model = keras.Sequential([keras.Input((3,)), encoder, Codebook(), keras.layers.Dense(3)])
            model.compile(keras.optimizers.Adam(0.02), "mse")
        history = model.fit(X, X, batch_size=5, epochs=3, shuffle=False, verbose=0).history["loss"]
        found.append([*model.get_weights(), np.asarray(history)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


# ---- stages of a pipeline, and variables outside of models


def test_a_stage_writes_once_for_each_microbatch() -> None:
    def trained(strategy: Any, cases: dict[str, Any], **split: Any) -> dict[str, Any]:
        with strategy.scope():
            layers = [Writes(write) for write in cases.values()]
            model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, kernel_initializer="ones")])
            model = keras_ext.PipelineModel(model, **split) if split else model
            model.compile("sgd", "mse")
        # The number of rows is not static.
        model.fit(tf.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(4), shuffle=False, verbose=0)
        return {"floats": [each.numpy() for each in model.non_trainable_variables if each.shape == (3,)]}

    pipeline = strategies.MirroredStrategy([f"CPU:{k}" for k in range(4)], mesh={"data": 2, "pipe": 2})
    sums = {name: EQUAL[name] for name in ("sum", "subtracted", "count_of_floats")}
    check_equal(trained(pipeline, sums, num_microbatches=2), trained(tf.distribute.get_strategy(), sums))
    with pytest.warns(strategies.DifferenceWarning, match="once for each micro-batch"):
        trained(pipeline, {"decayed": EQUAL["decayed_sum"], "sum": EQUAL["sum"]}, num_microbatches=2)


def test_variables_of_no_scope_are_reported() -> None:
    outside = keras.Variable(0.0, trainable=False)
    with pytest.warns(strategies.DifferenceWarning, match=r"outside of the strategy's scope.*strategy\.scope"):
        written(devices(2), {"outside": lambda v, n, x: outside.assign_add(1.0)})


def test_weights_in_shards(expected: dict[int, dict[str, list[Any]]]) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard="weights")
    cases = {name: EQUAL[name] for name in ("sum", "count", "written_twice", "maximum", "of_tensorflow")}
    check_equal(written(strategy, cases), {name: expected[4][name] for name in cases})
