"""``strategy.check(model, data)`` finds what differs from one device, names where, and leaves the model as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies._keras_hooks.compared_batches import batches_of
from tests.strategies._keras_hooks import faulty
from tests.strategies._keras_hooks.faulty import X, Y, model_of

L: Any = keras.layers
TWO = ["CPU:0", "CPU:1"]

pytestmark = pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")


def pipeline(model: Any) -> Any:
    return keras_ext.PipelineModel(model, num_microbatches=2)


def made(strategy: Any, make: Callable[[], Any], place: Callable[[Any], Any] | None = None, **compiled: Any) -> Any:
    with strategy.scope():
        model = make() if place is None else place(make())
        model.compile(**{"optimizer": "adam", "loss": "mse", **compiled})
    return model


#: The layer and the arguments of `compile` of each fault, the names that are found, and a part of the sentence.
FAULTS: dict[str, tuple[Any, Callable[[], dict[str, Any]], tuple[str, ...], str]] = {
    "a gradient is scaled": (
        functools.partial(faulty.ScalesGradient, name="scales"),
        dict,
        ("first", "scales"),
        "first/kernel' differs by 5.",
    ),
    "a layer draws": (functools.partial(faulty.Draws, name="draws"), dict, ("draws",), "'draws' is the first layer"),
    "a metric is no sum": (
        None,
        lambda: {"metrics": [faulty.RootMeanSquare(name="root")]},
        ("root",),
        "The metric 'root' differs before the first update",
    ),
    "a loss averages": (
        None,
        lambda: {"loss": faulty.MeanOfLarge()},
        ("compile(loss=MeanOfLarge)",),
        "and the loss differs",
    ),
    "a layer's loss averages": (
        functools.partial(faulty.AddsMeanOfPositive, name="adds"),
        dict,
        ("compile(loss=mse)", "adds"),
        "and the loss differs",
    ),
}
# A pipeline of one replica computes metrics from whole batches.
IN_PIPELINES = [fault for fault in FAULTS if fault != "a metric is no sum"]


@pytest.mark.parametrize(
    ("axis", "fault"),
    [
        *(("data", fault) for fault in FAULTS),
        *(pytest.param("pipe", fault, marks=pytest.mark.parity_all) for fault in IN_PIPELINES),
    ],
)
def test_deliberate_faults_are_named(axis: str, fault: str) -> None:
    inner, compiled, names, text = FAULTS[fault]
    strategy = strategies.MirroredStrategy(TWO, mesh={axis: 2})
    with strategy.scope():
        arguments = compiled()
    model = made(strategy, functools.partial(model_of, inner), pipeline if axis == "pipe" else None, **arguments)
    before = model.get_weights()
    found = strategy.check(model, (X, Y), steps=1)
    assert not found.ok
    assert found.suspects == names, found
    assert text in found.cause
    assert_equal(model.get_weights(), before)


def assert_equal(one: list[Any], other: list[Any]) -> None:
    for value, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(value, expected)


def with_noise() -> Any:
    """Returns a model with layers that are known to differ: they draw, or normalize over the rows of a replica."""
    keras.utils.set_random_seed(2)
    layers = [L.Dense(8, "relu"), L.Dropout(0.5), L.BatchNormalization(), L.Dense(8, "relu"), L.GaussianNoise(0.1)]
    return keras.Sequential([keras.Input((6,)), *layers, L.Dense(3)])


PLACES: dict[str, tuple[dict[str, Any], Any]] = {
    "weights in shards": ({"mesh": {"data": 2}, "shard": "weights"}, None),
    "split": ({"mesh": {"tensor": 2}}, keras_ext.parallelize),
    "in stages": ({"mesh": {"pipe": 2}}, pipeline),
    "split replicas": ({"mesh": {"data": 2, "tensor": 2}}, keras_ext.parallelize),
}


@pytest.mark.parametrize(
    "place",
    [each if each != "split replicas" else pytest.param(each, marks=pytest.mark.parity_all) for each in PLACES],
)
def test_what_is_equal_is_found_equal_and_left_as_it_was(place: str) -> None:
    options, split = PLACES[place]
    devices = [f"CPU:{i}" for i in range(int(np.prod(list(options["mesh"].values()))))]

    def train(*, checked: bool) -> tuple[Any, Any]:
        strategy = strategies.MirroredStrategy(devices, **options)
        model = made(strategy, with_noise, split, metrics=["mae"])
        fit = functools.partial(model.fit, X, Y, batch_size=8, shuffle=False, verbose=0)
        fit()
        if checked:
            found = strategy.check(model, tf.data.Dataset.from_tensor_slices((X[:21], Y[:21])).batch(7), steps=3)
            assert found.ok, found
            assert [row.name for row in found.rows if row.kind == "output"][-1] == "the model's outputs"
            assert {row.kind for row in found.rows} == {"output", "log", "gradient", "weight", "slot", "state"}
            assert sum("dropout" in note and "gaussian_noise" in note for note in found.notes) == 1
            by_rows = any("batch_normalization" in note for note in found.notes)
            assert by_rows == (place != "split")
        return fit(epochs=2).history, model.get_weights()

    # The comparison's draws, counts, averages and traces are undone.
    history, weights = train(checked=False)
    again, others = train(checked=True)
    assert history == again
    assert_equal(weights, others)


def test_two_meshes_are_compared() -> None:
    split = strategies.MirroredStrategy(TWO, mesh={"tensor": 2})
    model = made(split, with_noise, keras_ext.parallelize)
    with pytest.raises(ValueError, match=r"give a function that makes, splits and compiles .*against=..., reference="):
        split.check(model, (X, Y), against={"data": 2})
    found = split.check(
        model, (X, Y), steps=1, against={"pipe": 2}, reference=lambda: compiled_plain(pipeline(with_noise()))
    )
    assert found.ok, found
    # In micro-batches, the normalization of one of the meshes differs: it is left out in both.
    assert len(found.notes) == 2
    # One rounding is measured on the other mesh, too.
    shards = strategies.MirroredStrategy(TWO, shard="weights")
    faulty_too = functools.partial(model_of, functools.partial(faulty.Draws, name="draws"))
    model = made(split, faulty_too, keras_ext.parallelize)
    found = split.check(model, (X, Y), steps=1, against=shards, reference=lambda: compiled_plain(faulty_too()))
    assert found.suspects == ("draws",)
    with pytest.raises(ValueError, match=r"The model on the other mesh has other variables. Received: layers/batch"):
        split.check(model, (X, Y), steps=1, against=shards, reference=lambda: compiled_plain(with_noise()))


def test_models_without_a_plain_copy_are_compared_with_a_reference() -> None:
    class Own(keras.Model):
        def __init__(self, units: int) -> None:
            super().__init__()
            self.dense = L.Dense(units)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    def make() -> Any:
        model = Own(3)
        model.compile("sgd", "mse")
        return model

    strategy = strategies.MirroredStrategy(TWO)
    with strategy.scope():
        model = make()
    with pytest.raises(ValueError, match=r"no plain copy. Give a function .*reference=make_model.*NotImplementedError"):
        strategy.check(model, (X, Y))
    assert strategy.check(model, (X, Y), reference=make, steps=2).ok
    with pytest.raises(ValueError, match=r"has other variables than the mesh's. Received: dense/vars/0: \(6, 3\) on"):
        strategy.check(model, (X, Y), reference=lambda: compiled_plain(model_of()))
    with pytest.raises(ValueError, match=r"'sequential\w*' is not compiled. Give a function"):
        strategy.check(model, (X, Y), reference=model_of)

    def mixture() -> Any:
        inputs = keras.Input((2, 3))
        model = keras.Model(inputs, keras_ext.MixtureOfExperts(4, 8)(inputs))
        return compiled_plain(model)

    with strategy.scope():
        model = mixture()
    with pytest.raises(ValueError, match=r"has no load_balancing_loss, so that a copy trains without. Give a function"):
        strategy.check(model, (X.reshape(-1, 2, 3), X.reshape(-1, 2, 3)))


def compiled_plain(model: Any, **compiled: Any) -> Any:
    model.compile("adam", "mse", **compiled)
    return model


class Adversaries(keras.Model):
    """Has two optimizers, no `call`, and a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = (
            keras.Sequential([keras.Input((6,)), L.Dense(6)]),
            keras.Sequential([keras.Input((6,)), L.Dense(1)]),
        )
        self.built = True

    def compile(self, of_maker: Any, of_judge: Any) -> None:
        super().compile(loss=None)
        self.of_maker, self.of_judge = of_maker, of_judge

    def train_step(self, data: Any) -> Any:
        x = data
        for part, optimizer, sign in ((self.judge, self.of_judge, 1.0), (self.maker, self.of_maker, -1.0)):
            with tf.GradientTape() as tape:
                loss = sign * tf.reduce_mean(self.judge(self.maker(x)))
            optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
        return {"loss": loss}


def adversaries() -> Any:
    keras.utils.set_random_seed(3)
    model = Adversaries()
    model.compile(keras.optimizers.Adam(), keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def test_models_with_two_optimizers() -> None:
    strategy = strategies.MirroredStrategy(TWO)
    with strategy.scope():
        model = adversaries()
    for is_trained in (False, True):
        if is_trained:
            model.fit(X, batch_size=8, verbose=0)
        found = strategy.check(model, (X,), reference=adversaries, steps=2)
        assert found.ok, found
        gradients = [row.name.rpartition("/")[2] for row in found.rows if row.kind == "gradient"]
        assert gradients[-4:] == ["kernel", "bias", "kernel", "bias"]
        assert [note.partition(":")[0] for note in found.notes] == ["outputs of layers"]
        assert len([row for row in found.rows if row.kind == "slot" and row.step == 2]) > 8
        # An optimizer that no step has built is not built by the comparison.
        assert model.of_maker.built == model.of_judge.built == is_trained


def test_optimizers_in_a_list_are_refused() -> None:
    strategy = strategies.MirroredStrategy(TWO)
    model = made(strategy, model_of)
    with strategy.scope():
        model.others = [keras.optimizers.Adam()]
    with pytest.raises(ValueError, match=r"Give each an attribute of its own. Received: 'others'"):
        strategy.check(model, (X, Y))


def model_of_two(*layers: Any) -> Any:
    """Returns a model of two models with layers of the same names, which are made in another order than called."""
    keras.utils.set_random_seed(5)
    inputs, inner = keras.Input((6,)), keras.Input((6,))
    decoder = keras.Model(inner, L.Dense(3)(L.Dense(6, "tanh", name="hidden")(inner)), name="decoder")
    encoder = keras.Model(inputs, L.Dense(6, "tanh", name="hidden")(inputs), name="encoder")
    x = encoder(inputs)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, decoder(x))


def test_variables_with_one_path_are_told_apart_and_layers_are_named_in_the_order_of_calls() -> None:
    strategy = strategies.MirroredStrategy(TWO)
    found = strategy.check(made(strategy, lambda: model_of_two(faulty.ScalesGradient(name="scales"))), (X, Y), steps=1)
    assert "hidden" in found.suspects[0]
    assert "scales" in found.suspects
    assert all(row.limit < 1e-3 for row in found.rows if row.kind == "gradient"), found
    assert strategy.check(made(strategy, model_of_two), (X, Y), steps=1).ok


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.parity_all)])
def test_half_a_gradient_is_found_in_half_precision(dtype: str) -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        strategy = strategies.MirroredStrategy(TWO)
        assert strategy.check(made(strategy, model_of), (X, Y), steps=1).ok
        model = made(strategy, functools.partial(model_of, functools.partial(faulty.ScalesGradient, name="scales")))
        assert strategy.check(model, (X, Y), steps=1).suspects == ("first", "scales")
    finally:
        keras.config.set_dtype_policy(before)


class DrawsInEachCall(keras.layers.Layer):
    """Draws a number that it does not use."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + 0 * keras.random.normal((1,), seed=self.seeds)


class OwnStep(keras.Sequential):
    """Overrides `train_step`."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_seeds_and_metrics_are_as_before() -> None:
    def make() -> Any:
        blocks = [keras.Sequential([DrawsInEachCall(name="draw"), L.Dense(6)]) for _ in range(2)]
        return OwnStep([keras.Input((6,)), *blocks, L.Dense(3)])

    strategy = strategies.MirroredStrategy(TWO)
    model = made(strategy, make, metrics=["mae"])
    model.train_on_batch(X, Y)
    seeds = [layer.seeds.state for layer in model._flatten_layers() if hasattr(layer, "seeds")]
    before = [np.asarray(seed) for seed in seeds], {**model.get_metrics_result()}
    assert strategy.check(model, (X, Y), steps=1, reference=lambda: compiled_plain(make(), metrics=["mae"])).ok
    assert_equal([np.asarray(seed) for seed in seeds], before[0])
    assert {**model.get_metrics_result()} == before[1]


def test_rounding_is_no_difference() -> None:
    # The bias before a normalization has a gradient of zero, of which rounding leaves noise, which Adam enlarges.
    def make() -> Any:
        keras.utils.set_random_seed(4)
        layers = [L.Dense(16), L.BatchNormalization(synchronized=True), L.Dense(3)]
        return keras.Sequential([keras.Input((6,)), *layers])

    strategy = strategies.MirroredStrategy(TWO)
    found = strategy.check(made(strategy, make), (X, Y))
    assert found.ok, found
    assert any(row.limit > 1e-3 for row in found.rows if row.kind == "gradient")
    assert not found.notes


def test_what_cannot_be_compared_is_refused() -> None:
    strategy = strategies.MirroredStrategy(TWO)
    with strategy.scope():
        model = model_of()
    with pytest.raises(ValueError, match=r"compile it first. Received: 'sequential\w*', not compiled"):
        strategy.check(model, (X, Y))
    with pytest.raises(ValueError, match=r"models that were made in its scope.*_DefaultDistributionStrategy"):
        strategy.check(compiled_plain(model_of()), (X, Y))
    for data in (X, {"x": X}):
        with pytest.raises(ValueError, match=r"a list of global batches.*strategy.check\(model, inputs=x\)"):
            strategy.check(model, data)
    for steps in (0, 2.0):
        with pytest.raises(ValueError, match=r"steps must be a whole number from 1. Received: steps="):
            strategy.check(model, (X, Y), steps=steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"fewer batches than steps. Received: 1 batches, steps=2"):
        strategy.check(model, [(X, Y)], steps=2)


def test_data_are_taken_as_fit_takes_them() -> None:
    class Sequence(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            return X[index : index + 2], Y[index : index + 2]

    for data in (
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(2),
        [(X[:2], Y[:2])] * 3,
        ((X[:2], Y[:2]) for _ in range(5)),
        Sequence(),
    ):
        batches = batches_of(data, 2)
        assert len(batches) == 2
        # As the source would give them to the program's own `train_step`.
        [(x, y)] = batches[0].data["x"]
        assert_equal([np.asarray(each) for each in (batches[0].x, x, y)], [X[:2], X[:2], Y[:2]])
    # Arrays are cut into as many batches as there are steps, of at most 32 rows.
    batch, _ = batches_of(({"a": X}, None, X[:, 0]), 2)
    assert (batch.x["a"].shape, batch.data["y"], batch.data["sample_weight"].shape) == ((12, 6), None, (12,))
    assert [batch.data["batch_size"] for batch in batches_of((np.zeros(100),), 2)] == [32, 32]
