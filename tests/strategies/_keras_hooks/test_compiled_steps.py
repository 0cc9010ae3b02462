"""`jit_compile=True`: the numbers, the compiled functions, and the number of traces. See also test_uncompiled_steps.py.

XLA for CPUs compiles on two logical devices. The results are compared with one plain-Keras device, compiled and not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import strategies
from tests.callers_graphs import callers_graph
from tests.gpu.xla import must_compile
from tests.releases import marks_of
from tests.strategies._keras_hooks.conftest import Traced
from tests.strategies.parity.harness import TOLERANCE, Case, compare, execute, features, fit_arrays, labels, vectors
from tests.would_be_gpus import would_be_gpus

X, Y = features(24, 6), features(24, 1, seed=1)

#: Makes a model for a value of `jit_compile`.
Make = Callable[[bool], keras.Model]


def mirrored(num_replicas: int = 2) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def dense(jit: bool) -> keras.Model:
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
    model.compile(
        keras.optimizers.Adam(0.01, global_clipnorm=0.1, gradient_accumulation_steps=2),
        "sparse_categorical_crossentropy",
        metrics=["accuracy", "sparse_categorical_crossentropy"],
        weighted_metrics=["accuracy"],
        steps_per_execution=2,
        jit_compile=jit,
    )
    return model


def two_outputs(jit: bool) -> keras.Model:
    class Penalty(keras.layers.Layer):
        """Adds a mean over rows to the loss."""

        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(x * x))
            return x

    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    hidden = Penalty()(keras.layers.Dense(4, activation="relu")(keras.layers.Add()(list(inputs.values()))))
    outputs = {"number": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(3)(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {"number": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"number": 0.5, "kind": 1.0},
        metrics={"number": ["mae"]},
        jit_compile=jit,
    )
    return model


def half_precision(jit: bool) -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**18)
    model.compile(optimizer, "mse", jit_compile=jit)
    return model


def _named(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": x, "b": -x[:, ::-1].copy()}


RUNS = {
    "sample weights, accumulation, clipping, steps_per_execution": (
        dense,
        fit_arrays(vectors(), labels(), sample_weight=np.abs(features(45, seed=2))),
        "float32",
    ),
    "class_weight": (dense, fit_arrays(vectors(), labels(), class_weight={0: 1.0, 1: 3.0, 2: 0.5}), "float32"),
    "several outputs, add_loss": (
        two_outputs,
        fit_arrays(_named(vectors()), {"number": features(45, 1, seed=3), "kind": labels()}),
        "float32",
    ),
    "mixed_float16, overflow": (half_precision, fit_arrays(vectors(), 10 * features(45, 1)), "mixed_float16"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in RUNS])
def test_the_numbers_are_those_of_one_device(name: str, traced: Traced, said: Any) -> None:
    make, run, policy = RUNS[name]
    cases = {jit: Case(name, functools.partial(make, jit), run, dtype_policy=policy) for jit in (True, False)}
    ours = execute(cases[True], mirrored())
    # In half precision XLA keeps more digits inside fused ops; the tolerance is the dtype's rounding, as elsewhere.
    tolerance = TOLERANCE if policy == "float32" else 2e-3
    assert compare(execute(cases[False], None), ours).largest < tolerance
    assert compare(execute(cases[True], None), ours).largest < tolerance
    assert not said()
    # Training, testing and prediction, on two replicas.
    assert len(traced.graphs) >= 3


def convolutional(jit: bool) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=jit)
    return model


def test_moving_statistics_are_those_without_xla(traced: Traced) -> None:
    """Each replica has its own statistics, because they are not synchronized: one device has others."""
    run = fit_arrays(features(45, 8, 8, 1), labels())
    outcomes = [execute(Case("", functools.partial(convolutional, jit), run), mirrored()) for jit in (True, False)]
    assert compare(outcomes[1], outcomes[0]).largest < TOLERANCE
    assert traced.graphs


class Scaled(keras.layers.Layer):
    """Multiplies each column by a weight, so that the weights show which columns were dropped."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[1:], initializer="zeros")

    def call(self, x: Any) -> Any:
        return keras.ops.sum(x * self.scale, axis=-1, keepdims=True)


def test_replicas_draw_differently_and_the_first_as_one_device() -> None:
    """XLA and TensorFlow draw different numbers from the same seed, also without a strategy."""

    def drawn(strategy: Any, rows: int) -> np.ndarray:
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = keras.Sequential([keras.Input((40,)), keras.layers.Dropout(0.5, seed=3), Scaled()])
            model.compile(keras.optimizers.SGD(-1.0), lambda y, predicted: predicted[:, 0], jit_compile=True)
        model.fit(np.ones((rows, 40)), np.ones((rows, 1)), batch_size=rows, verbose=0)
        return model.get_weights()[0]

    first = drawn(None, 1)
    # The mean of both replicas' rows: 0, 1 or 2 where neither, one or both kept the column.
    second = 2 * drawn(mirrored(), 2) - first
    assert set(first) == set(second) == {0.0, 2.0}
    assert (first != second).sum() > 5


def linear(**kwargs: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(**({"optimizer": "sgd", "loss": "mse", "jit_compile": True} | kwargs))
    return model


@pytest.mark.parametrize(("device", "num_steps"), [("CPU:0", 1), ("CPU:1", 2)])
def test_one_replica_is_compiled_whole_as_by_keras(device: str, num_steps: int) -> None:
    outcomes = []
    for scope in (strategies.MirroredStrategy([device]).scope(), contextlib.nullcontext()):
        keras.utils.set_random_seed(1)
        with scope:
            inputs = keras.Input((6,))
            model = keras.Model(inputs, keras.layers.BatchNormalization()(keras.layers.Dense(2)(inputs)))
            optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.1, gradient_accumulation_steps=2)
            model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=num_steps, jit_compile=True)
        x, y = X[:21], Y[:21]
        history = model.fit(x, y, batch_size=7, verbose=0, shuffle=False, validation_data=(x, y)).history
        outcomes.append([*model.get_weights(), model.predict(x, batch_size=7, verbose=0), *history.values()])
        for function in (model.train_function, model.test_function, model.predict_function):
            assert must_compile(function)
    for one, other in zip(*outcomes, strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_function_is_one_for_xla_and_traced_once_for_all_batch_sizes(traced: Traced) -> None:
    with mirrored().scope():
        model = linear(loss=keras.losses.MeanSquaredError())
    model.fit(X[:23], Y[:23], batch_size=5, epochs=2, verbose=0)
    # Both replicas call it.
    assert len(traced.graphs) == 1
    caller = callers_graph(traced.graphs[0])
    calls = [op for op in caller.get_operations() if "PartitionedCall" in op.type]
    names = {op.get_attr("f").name for op in calls}
    definitions = {each.signature.name: each for each in caller.as_graph_def().library.function}
    compiled = [name for name in names if definitions[name].attr["_XlaMustCompile"].b]
    assert len(compiled) == 1
    assert len([op for op in calls if op.get_attr("f").name in compiled]) == 2


@pytest.mark.parametrize(
    "statistics", [pytest.param(False, marks=pytest.mark.parity_all), True], ids=["row-wise", "looks at all rows"]
)
def test_smaller_batches_equal_those_without_xla(statistics: bool, traced: Traced) -> None:
    """The second replica has no rows in a batch of one."""
    weights = []
    for jit in (True, False):
        keras.utils.set_random_seed(1)
        with would_be_gpus():
            with strategies.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
                own = [keras.layers.BatchNormalization()] if statistics else [keras.layers.LayerNormalization()]
                model = keras.Sequential([keras.Input((6,)), *own, keras.layers.Dense(1)])
                model.compile("sgd", "huber", metrics=["mae"], jit_compile=jit)
            # The first replica has 5, 5 and 2 rows, the second 5, 5 and 1.
            history = model.fit(X[:23], Y[:23], batch_size=10, epochs=2, verbose=0, shuffle=False).history
            if jit:
                # XLA compiles the same traced function for other sizes.
                assert len(traced.graphs) == 1
            history["predicted"] = model.predict(X[:5], batch_size=4, verbose=0)
            validation = {"validation_data": (X[:7], Y[:7]), "validation_batch_size": 6}
            if not statistics:
                history |= model.fit(
                    X[:5], Y[:5], batch_size=4, epochs=2, verbose=0, shuffle=False, **validation
                ).history
                model.train_on_batch(X[:2], Y[:2])
            history["last"] = model.predict(X[:2], verbose=0)
        weights.append([*model.get_weights(), *history.values()])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_on_batches_and_evaluate_and_changes_of_mind(traced: Traced, said: Any) -> None:
    with mirrored().scope():
        model, plain = linear(), linear(jit_compile=False)
    for each in (model, plain):
        each.train_on_batch(X[:5], Y[:5])
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=TOLERANCE)
    np.testing.assert_allclose(model.test_on_batch(X, Y), plain.test_on_batch(X, Y), atol=TOLERANCE)
    np.testing.assert_allclose(model.predict_on_batch(X), plain.predict_on_batch(X), atol=TOLERANCE)
    assert traced.graphs
    assert model.jit_compile is True
    traced.graphs.clear()
    model.jit_compile = False
    model.make_train_function(force=True)
    model.fit(X, Y, verbose=0)
    with mirrored().scope():
        linear(run_eagerly=True, jit_compile="auto").fit(X, Y, verbose=0)
    assert not traced.graphs
    assert not said()
