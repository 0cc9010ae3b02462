"""Errors of pipelines whose stages are in two processes: run by `test_suites` in both at once, never collected.

Each error is raised on both ranks, and neither rank waits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from strategies.collectives.agreement import Agreement
from tests.strategies.processes.mesh_strategies import new_strategy
from tests.strategies.processes.spanning_optimizers import TOLERANCE, X, Y, job, on, plain, rank


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on("pipe")


def pipeline(cls: type = keras_ext.PipelineModel, make: Callable[[], keras.Model] = plain) -> Any:
    with on("pipe").scope():
        return cls(make(), num_microbatches=2, partition="uniform")


# ---- gradients outside of the pipeline's own train_step


def gradient(model: Any, inputs: Any, sources: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(tf.square(model(inputs, training=True)))
    return tape.gradient(loss, sources)


def refused() -> Any:
    return pytest.raises(ValueError, match=r"stages of the pipeline .* are in several processes.*compile and fit")


def pairs(first: Iterable[str], second: Iterable[str], *gate: tuple[str, str]) -> list[Any]:
    """Returns all pairs; those that are not in `gate`, which has each of the words, need the flag."""
    every = itertools.product(first, second)
    return [pytest.param(*pair, marks=[] if pair in gate else [pytest.mark.parity_all]) for pair in every]


@pytest.mark.parametrize(
    ("traced", "of"),
    pairs(
        ("nothing", "model", "tape"),
        ("all weights", "the first", "the last", "inputs"),
        ("nothing", "all weights"),
        ("nothing", "inputs"),
        ("model", "the first"),
        ("tape", "the last"),
    ),
)
def test_gradients_of_a_call(traced: str, of: str) -> None:
    model, inputs = pipeline(), tf.constant(X[:4])
    weights = [weight.value.values[0] for weight in model.trainable_variables]
    sources = {"all weights": weights, "the first": weights[0], "the last": weights[-1], "inputs": inputs}[of]
    call = tf.function(lambda x, training: model(x, training=training)) if traced == "model" else model
    taken: Callable[..., Any] = gradient
    if traced == "tape":
        taken = tf.function(lambda model, inputs, _: gradient(model, inputs, inputs if of == "inputs" else sources))
    with refused():
        taken(call, inputs, sources)


def test_a_call_of_which_no_gradient_is_taken() -> None:
    model, inputs = pipeline(), tf.constant(X[:4])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = model(inputs)
        other = tf.reduce_sum(inputs * inputs)
    np.testing.assert_array_equal(outputs, model(inputs))
    np.testing.assert_array_equal(tape.gradient(other, inputs), 2 * X[:4])


def with_head(trains_stages: bool) -> keras.Model:
    inside = pipeline()
    inside.trainable = trains_stages
    with on("pipe").scope():
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(3, name="behind")(inside(inputs)))
        model.compile("sgd", "mse")
    return model


def test_a_pipeline_inside_of_a_model_that_is_trained() -> None:
    with refused():
        with_head(trains_stages=True).fit(X, Y, batch_size=8, verbose=0)


def test_what_is_behind_a_frozen_pipeline_is_trained() -> None:
    keras.utils.set_random_seed(3)
    model = with_head(trains_stages=False)
    outputs = model.layers[1].predict(X, verbose=0)
    head = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    head.compile("sgd", "mse")
    head.set_weights(model.layers[2].get_weights())
    expected = head.fit(outputs, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
    found = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
    difference = float(np.abs(np.array(found) / np.array(expected) - 1).max())
    assert job().gather(tf.constant([difference])).numpy().max() <= TOLERANCE


class OwnStep(keras_ext.PipelineModel):
    """A pipeline whose step takes gradients like the step of a plain model."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_a_train_step_of_ones_own() -> None:
    model = pipeline(OwnStep)
    model.compile("sgd", "mse")
    with refused():
        model.fit(X, Y, batch_size=8, verbose=0)


# ---- optimizers of the program, which get the gradients of this process' weights


class ChangesGradients(keras.optimizers.Adam):
    """Changes gradients: all by their common norm, or each by itself."""

    joint = True

    def changed(self, gradients: Any) -> Any:
        gradients = list(gradients)
        return (
            tf.clip_by_global_norm(gradients, 0.05)[0]
            if self.joint
            else [None if each is None else 0.5 * each for each in gradients]
        )


class InApply(ChangesGradients):
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(self.changed(grads), trainable_variables)


class InApplyGradients(ChangesGradients):
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        return super().apply_gradients(zip(self.changed(gradients), variables, strict=True))


class EachInApply(InApply):
    joint = False


@pytest.mark.parametrize(
    ("axis", "cls"),
    [
        ("pipe", InApply),
        ("tensor", InApplyGradients),
        pytest.param("pipe", InApplyGradients, marks=pytest.mark.parity_all),
        pytest.param("tensor", InApply, marks=pytest.mark.parity_all),
    ],
)
def test_an_optimizer_that_clips_all_gradients_together(axis: str, cls: type) -> None:
    with on(axis).scope():
        model = keras_ext.parallelize(plain()) if axis == "tensor" else pipeline()
        model.compile(cls(0.01), "mse")
    with pytest.raises(ValueError, match=rf"{cls.__name__} overrides apply.*weights.* are in several processes here"):
        model.fit(X, Y, batch_size=8, verbose=0)


def test_an_optimizer_that_changes_each_gradient_by_itself() -> None:
    keras.utils.set_random_seed(3)
    one = plain()
    one.compile(EachInApply(0.01), "mse")
    one.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    keras.utils.set_random_seed(3)
    with on("pipe").scope():
        split = pipeline()
        split.compile(EachInApply(0.01), "mse")
    split.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for mine, theirs in zip(split.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_an_optimizer_inside_of_another_where_each_process_updates_some_weights() -> None:
    with new_strategy({"data": 2}, shard="optimizer").scope():
        model = plain()
        model.compile(keras.optimizers.LossScaleOptimizer(InApply(0.01)), "mse")
    with pytest.raises(ValueError, match=r"InApply overrides apply.*each process updates some of the weights here"):
        model.fit(X, Y, batch_size=8, verbose=0)


# ---- losses and metrics, which the process of the last stage computes


def broken(y: Any, predicted: Any) -> Any:
    raise RuntimeError("a metric of the user's that raises")


#: By the kind of fault: arguments of compile, labels, weights of rows, and the error.
WRONG: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "labels": ({"loss": "mse"}, Y[:, :2], None, "(?i)dimensions must be equal|incompatible|broadcast"),
    "loss by name": ({"loss": {"other": "mse"}}, Y, None, "other"),
    "no loss": ({}, Y, None, "No loss to compute"),
    "metric": ({"loss": "mse", "metrics": [broken]}, Y, None, "a metric of the user's that raises"),
    "weights of rows": ({"loss": "mse"}, Y, np.ones((22, 2)), "(?i)dimensions must be equal|incompatible|broadcast"),
}


@pytest.mark.parametrize(
    ("wrong", "entry"),
    pairs(
        WRONG,
        ("fit", "evaluate", "train_on_batch"),
        *((wrong, "fit") for wrong in WRONG),
        ("labels", "evaluate"),
        ("metric", "train_on_batch"),
    ),
)
def test_errors_of_losses_and_metrics(wrong: str, entry: str) -> None:
    compiling, labels, weights, message = WRONG[wrong]
    model = pipeline()
    model.compile("sgd", **compiling)
    options = {} if entry == "train_on_batch" else {"batch_size": 8, "verbose": 0}
    with pytest.raises((ValueError, RuntimeError, KeyError), match=message):
        getattr(model, entry)(X, labels, sample_weight=weights, **options)


def test_errors_after_a_fit_that_was_right() -> None:
    model = pipeline()
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    for entry in ("fit", "evaluate"):
        with pytest.raises(ValueError, match=WRONG["labels"][-1]):
            getattr(model, entry)(X, Y[:, :2], batch_size=8, verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)


def test_a_loss_without_a_reduction() -> None:
    model = pipeline()
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=None))
    model.evaluate(X, Y, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="give the loss a reduction"):
        model.fit(X, Y, batch_size=8, verbose=0)


class Adds(keras.layers.Layer):
    """Adds the whole loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(x * x))
        return x


def test_a_loss_that_layers_add() -> None:
    keras.utils.set_random_seed(3)
    wanted = keras.Sequential([keras.Input((6,)), *plain().layers, Adds()])
    model = pipeline(make=lambda: wanted)
    for each in (wanted, model):
        each.compile("sgd")
    expected, found = (
        each.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"] for each in (wanted, model)
    )
    assert job().gather(tf.abs(tf.constant(expected) - tf.constant(found))).numpy().max() <= TOLERANCE


class Unbuilt(keras.Model):
    """Has a custom step, and no weights before its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_models_with_a_step_of_their_own_are_compared() -> None:
    with on("pipe").scope():
        model = Unbuilt()
        model.compile(keras.optimizers.Adam(1e-3 * (1 + rank())), "mse")
    with pytest.raises(ValueError, match=r"rank 0: optimizer Adam.*rank 1: optimizer Adam"):
        model.fit(X, Y, batch_size=8, verbose=0)


# ---- initializers with a state


@keras.saving.register_keras_serializable("spanning")
class Counting(keras.initializers.Initializer):
    """Fills weights with the number of its calls so far: 1, 2, ..."""

    calls = 0

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        Counting.calls += 1
        return keras.ops.full(shape, Counting.calls, dtype)


@keras.saving.register_keras_serializable("spanning")
def of_numpy(shape: Any, dtype: Any = None) -> Any:
    return np.random.standard_normal(shape).astype(dtype)


def seeded() -> Any:
    return keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5))


INITIALIZERS: dict[str, Callable[[], Any]] = {
    "seed generator": seeded,
    "class": Counting,
    "function": lambda: of_numpy,
    "default": lambda: "glorot_uniform",
}


def drawn(initializer: Any) -> keras.Model:
    """Returns two layers that draw from the state of one initializer."""
    common = {"kernel_initializer": initializer, "bias_initializer": initializer}
    hidden = [keras.layers.Dense(8, name="up", **common), keras.layers.Dense(4, name="down", **common)]
    return keras.Sequential([keras.Input((6,)), *hidden])


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("axis", ["pipe", "tensor"])
def test_initial_weights_are_those_of_plain_keras(axis: str, name: str) -> None:
    found = []
    for spread in (False, True):
        keras.utils.set_random_seed(3)
        Counting.calls = 0
        with on(axis).scope() if spread else contextlib.nullcontext():
            model = drawn(INITIALIZERS[name]())
            if spread and axis == "pipe":
                model = keras_ext.PipelineModel(model, partition="uniform")
            elif spread:
                model = keras_ext.parallelize(model)
        found.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    everywhere = job().gather(tf.constant(np.stack(found)[np.newaxis])).numpy()
    for each in everywhere.reshape(-1, everywhere.shape[-1]):
        np.testing.assert_array_equal(each, found[0])


def test_layers_made_split_draw_as_plain_ones() -> None:
    with on("tensor").scope():
        initializer = seeded()
        layers = [keras_ext.ColumnParallelDense(8, kernel_initializer=initializer) for _ in range(2)]
        found = [keras.Sequential([keras.Input((6,)), layer]).get_weights()[0] for layer in layers]
    initializer = seeded()
    for each in found:
        np.testing.assert_array_equal(each, initializer((6, 8)))


# ---- batches


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what processes exchange about their batches, in order."""
    names: list[str] = []
    gathered = Agreement.gathered

    def noted(agreement: Agreement, what: str, *numbers: int) -> Any:
        names.append(what)
        return gathered(agreement, what, *numbers)

    monkeypatch.setattr(Agreement, "gathered", noted)
    return names


def test_batches_are_compared_once(exchanged: list[str]) -> None:
    model = pipeline()
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0, epochs=2)
    assert exchanged.count("checksums of the first batch") == 1


def test_the_first_call_on_a_batch_is_compared(exchanged: list[str]) -> None:
    model = pipeline()
    model.compile("sgd", "mse")
    for _ in range(2):
        model.train_on_batch(X[:8], Y[:8])
        model.test_on_batch(X[:8], Y[:8])
        model.predict_on_batch(X[:8])
    assert exchanged.count("checksums of the batch") == 3


def of_batches(count: int, *, known: bool) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat(count)
    return dataset if known else dataset.filter(lambda x, y: True)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_lengths_that_differ() -> None:
    model = pipeline()
    model.compile("sgd", "mse")
    start = model.get_weights()
    fit = functools.partial(model.fit, shuffle=False)
    for call in (fit, model.evaluate, model.predict):
        with pytest.raises(
            ValueError, match=r"given the same dataset.*rank 0: batches, .*: 3 \| rank 1: batches, .*: 4\."
        ):
            call(of_batches(3 + rank(), known=True), verbose=0)
    np.testing.assert_equal(model.get_weights(), start)
    counted = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: counted.append(batch))
    fit(of_batches(3, known=False), epochs=2, verbose=0, callbacks=[count])
    assert counted == [0, 1, 2] * 2
    with pytest.raises(
        ValueError, match=r"given the same dataset.*rank 0: 1 for a batch .*: 0, 0 \| rank 1: 1 for a batch .*: 1, 0\."
    ):
        fit(of_batches(3 + rank(), known=False), epochs=2, verbose=0, callbacks=[count])
    assert counted == [0, 1, 2] * 3


def of_a_function(x: Any) -> Any:
    return on("pipe").distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)
    )


#: By the kind of data: a call with data that differ between the ranks.
OTHERS: dict[str, Callable[[Any], Any]] = {
    "arrays": lambda model: model.fit(X + rank(), Y, batch_size=8, verbose=0),
    "random numbers": lambda model: model.predict(
        tf.data.Dataset.from_tensor_slices(X).map(lambda x: x + tf.random.normal([6], seed=rank())).batch(8), verbose=0
    ),
    "a function": lambda model: model.fit(of_a_function(X + rank()), shuffle=False, verbose=0),
    "one batch": lambda model: model.train_on_batch(X[:8], Y[:8] + rank()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_batches_that_differ(kind: str) -> None:
    model = pipeline()
    model.compile("sgd", "mse")
    start = model.get_weights()
    with pytest.raises(ValueError, match=r"given different data: the first batch on ranks 1 .*rank 0: .* \| rank 1: "):
        OTHERS[kind](model)
    np.testing.assert_equal(model.get_weights(), start)
    # The processes go on.
    model.fit(of_a_function(X), shuffle=False, verbose=0)
