"""To programs and files, a model of a strategy is one of the class that the program chose; numbers: ``parity``."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._keras_hooks import wrapping
from strategies._keras_hooks.distributed_models import DistributedModel
from tests.strategies.parity.harness import Case, compare, execute, fit_arrays, targets, vectors

X, Y = np.linspace(0, 1, 24).reshape(8, 3).astype("float32"), np.ones((8, 1), "float32")
ENTRIES = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def mirrored(**kwargs: Any) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"], **kwargs)


class Graph(keras.Model):
    """A program's class of models that are made of a graph: Keras changes its bases when the first one is made."""


@keras.saving.register_keras_serializable("own")
class Own(keras.Model):
    """A program's class."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


class Announced(Own):
    """A class whose `__init_subclass__` requires an argument."""

    kinds: tuple[str, ...] = ()

    def __init_subclass__(cls, *, kind: str) -> None:
        Announced.kinds += (kind,)


class OfAKind(Announced, kind="derived"):
    """A class that is announced."""


def built(cls: Any) -> Any:
    inputs = keras.Input((3,))
    if issubclass(cls, keras.Sequential):
        return cls([inputs, keras.layers.Dense(1)])
    if cls in (keras.Model, Graph):
        return cls(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))
    model = cls()
    model.build((None, 3))
    return model


CLASSES = [keras.Sequential, keras.Model, Graph, Own, OfAKind]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_program_sees_the_class_that_it_chose(cls: type) -> None:
    plain = built(cls)
    with mirrored().scope():
        made, other = built(cls), built(cls)
    assert isinstance(made, DistributedModel)
    assert type(made) is type(other)
    assert made.__class__ is type(plain)
    assert isinstance(made, type(plain))
    assert str(type(made)) == str(type(plain))
    assert dir(made) == dir(plain)
    assert [inspect.signature(getattr(made, name)) for name in (*ENTRIES, "export", "compile")] == [
        inspect.signature(getattr(plain, name)) for name in (*ENTRIES, "export", "compile")
    ]
    assert Announced.kinds == ("derived",)


def test_a_model_without_a_graph_or_a_class_of_its_own() -> None:
    with mirrored().scope():
        model = keras.Model()
    assert isinstance(model, DistributedModel)
    assert model.__class__ is keras.Model


@pytest.mark.parametrize("make", [lambda: built(Graph), lambda: built(keras.Sequential)])
def test_its_class_may_be_used_and_derived_from(make: Callable[[], Any]) -> None:
    with mirrored().scope():
        cls: Any = type(make())

        class Derived(cls):
            """A class of a model's own class."""

        derived = Derived.from_config(make().get_config())
    assert derived.__class__ is Derived
    assert isinstance(derived, DistributedModel)

    with mirrored().scope():
        model = make()
        model.__class__ = Derived
        model.compile("sgd", "mse")
    assert model.__class__ is Derived
    assert isinstance(model, DistributedModel)
    model.fit(X, Y, verbose=0)


def saved_and_opened(model: Any, folder: Path) -> Any:
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


COPIES: dict[str, Callable[[Any, Path], Any]] = {
    "copy": lambda each, _: copy.copy(each),
    "deepcopy": lambda each, _: copy.deepcopy(each),
    "pickle": lambda each, _: pickle.loads(pickle.dumps(each)),
    "clone_model": lambda each, _: keras.models.clone_model(each),
    "__class__": lambda each, _: each.__class__.from_config(each.get_config()),
    "type": lambda each, _: type(each).from_config(each.get_config()),
    "file": saved_and_opened,
}


@pytest.mark.parametrize("cls", [pytest.param(keras.Sequential, marks=pytest.mark.parity_all), Own])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies(copied: Callable[[Any, Path], Any], cls: Any, tmp_path: Path) -> None:
    strategy = mirrored()
    with strategy.scope():
        made = built(cls)
        made.compile("sgd", "mse")
        inside = copied(made, tmp_path)
    outside = copied(made, tmp_path)
    losses = []
    for each, scope in ((inside, strategy), (outside, None), (built(cls), None)):
        assert each._distribute_strategy is scope
        assert each.__class__ is made.__class__
        if not each.built:
            with each.distribute_strategy.scope():
                each.build((None, 3))
        each.set_weights(made.get_weights())
        each.compile("sgd", "mse")
        losses += each.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, losses[-2:] * 3, rtol=1e-6)


def test_models_of_no_strategy_are_those_of_keras() -> None:
    with mirrored().scope():
        built(keras.Sequential)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        of_tensorflow = built(keras.Sequential)
    assert [type(each) for each in (of_tensorflow, built(keras.Sequential))] == [keras.Sequential] * 2
    wrapped = {
        name for cls in keras.Sequential.__mro__ for name, each in vars(cls).items() if hasattr(each, wrapping._MARK)
    }
    of_layers = {"__setattr__", "add_loss", "_clear_losses", "get_weights", "set_weights"}
    assert wrapped - of_layers == {"__init__", "compile", "_assert_compile_called", "make_predict_function"}


@pytest.mark.parametrize("name", ["compile", *ENTRIES])
def test_in_a_strategys_scope_models_of_no_strategy_are_refused(name: str) -> None:
    """Also after they were used outside of it: Keras keeps the functions that it has made."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="lonely")
    model.compile("sgd", "mse", jit_compile=False)
    arguments = {"compile": (), "predict": (X,), "predict_on_batch": (X,)}.get(name, (X, Y))
    getattr(model, name)(*arguments)
    strategy = mirrored()
    with strategy.scope(), pytest.raises(ValueError, match=r"model 'lonely' was not made under this Mirrored"):
        getattr(model, name)(*arguments)
    with strategy.scope():
        # Nothing but what computes is refused.
        assert model.distribute_strategy is strategy
        model.set_weights(model.get_weights())
        model.summary(print_fn=lambda *_, **__: None)


class Added(keras.layers.Layer):
    """Adds a loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x


class Explicit(keras.Model):
    """Overrides steps, and calls ``keras.Model``, as older programs do, in place of ``super()``."""

    def __init__(self) -> None:
        keras.Model.__init__(self)
        self.first = keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2")
        self.added = Added()
        self.last = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.added(self.first(x)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        keras.Model.compile(self, *args, **kwargs)

    def train_step(self, data: Any) -> Any:
        return keras.Model.train_step(self, data)

    def test_step(self, data: Any) -> Any:
        return keras.Model.test_step(self, data)

    def predict_step(self, data: Any) -> Any:
        return keras.Model.predict_step(self, data)

    def get_metrics_result(self) -> Any:
        return keras.Model.get_metrics_result(self)


class ExplicitEntries(Explicit):
    """Overrides ``fit`` and its like, too."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Model.fit(self, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Model.evaluate(self, *args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Model.predict(self, *args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Model.train_on_batch(self, *args, **kwargs)

    def make_predict_function(self, force: bool = False) -> Any:
        return keras.Model.make_predict_function(self, force)


class ExplicitLoss(ExplicitEntries):
    """Adds terms to the loss, without the argument `training`."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        loss = keras.Model.compute_loss(self, x, y, y_pred, sample_weight)
        return loss + 0.1 * keras.ops.mean(keras.ops.square(y_pred))


class ExplicitStep(ExplicitEntries):
    """Calls Keras' loss, and Keras' metrics, in a step of its own."""

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = keras.Model.compute_loss(self, x, y, predicted)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        keras.Model.compute_metrics(self, x, y, predicted)
        return keras.Model.get_metrics_result(self)


@pytest.mark.parametrize(
    ("cls", "jit_compile"),
    [
        (ExplicitEntries, False),
        pytest.param(ExplicitEntries, True, marks=pytest.mark.parity_all),
        (ExplicitLoss, False),
        pytest.param(ExplicitStep, False, marks=pytest.mark.parity_all),
    ],
)
def test_calls_of_keras_model_in_place_of_super(cls: Any, jit_compile: bool) -> None:
    def make() -> Any:
        model = cls()
        model.compile(
            keras.optimizers.Adam(0.01, clipnorm=1.0), "mse", metrics=["mae", "r2_score"], jit_compile=jit_compile
        )
        return model

    def run(model: Any, strategy: Any) -> Any:
        logs = dict(fit_arrays(vectors(), targets())(model, strategy))
        return logs | {"on batch": model.train_on_batch(vectors()[:5], targets()[:5])}

    case = Case(cls.__name__, make, run)
    difference = compare(execute(case, None), execute(case, mirrored()))
    assert difference.largest <= 1e-6, difference


def test_parts_of_such_a_model_are_made_and_checked_too() -> None:
    with mirrored().scope():
        model, other = ExplicitEntries(), ExplicitEntries()
    # Keras makes them by their names.
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    other.own = keras.optimizers.Adam(name="made_outside")
    uses: list[Callable[[], Any]] = [lambda: other.fit(X, Y), lambda: other.predict(X)]
    for use in uses:
        with pytest.raises(ValueError, match="optimizer 'made_outside' was not made under"):
            use()


@pytest.mark.parametrize("name", ["fit", "evaluate", "train_on_batch"])
def test_between_processes_they_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = mirrored()
    with strategy.scope():
        model = ExplicitEntries()
        model.compile("sgd", "mse")
    monkeypatch.setattr(strategy.extended.engine, "agreement", object())
    with pytest.raises(ValueError, match=rf"Call super\(\).{name}\(...\) in place of keras.Model.{name}\(self, ...\)"):
        getattr(model, name)(X, Y)


def test_classes_of_programs_can_be_collected() -> None:
    def train() -> weakref.ref[type]:
        class Local(keras.Sequential):
            pass

        with mirrored().scope():
            assert isinstance(Local(), DistributedModel)
        return weakref.ref(Local)

    found = train()
    gc.collect()
    assert found() is None
