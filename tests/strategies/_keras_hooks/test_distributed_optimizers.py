"""To programs and files, an optimizer of a strategy is one of the class that the program chose; numbers: ``parity``."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._keras_hooks.distributed_optimizers import DistributedOptimizer
from tests.strategies.parity.cases_gradients import gathered_by_hand
from tests.strategies.parity.harness import TOLERANCE

X, Y = np.linspace(0, 1, 24).reshape(8, 3).astype("float32"), np.ones((8, 1), "float32")


def mirrored(**kwargs: Any) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"], **kwargs)


class Halved(keras.optimizers.SGD):
    """Overrides what optimizers of a user's own override; records the gradients that it applies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[str] = []

    def build(self, variables: Any) -> None:
        self.seen += [variable.path for variable in variables]
        super().build(variables)

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(g, v) for g, v in grads_and_vars])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient / 2, variable, learning_rate)


@keras.saving.register_keras_serializable("own")
class Registered(keras.optimizers.Adam):
    """A registered class."""


MADE: list[Callable[[], keras.Optimizer]] = [
    keras.optimizers.Adam,
    keras.optimizers.Adagrad,
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb()),
    lambda: Halved(0.1),
    Registered,
]


@pytest.mark.parametrize("make", MADE)
def test_a_program_sees_the_class_that_it_chose(make: Callable[[], keras.Optimizer]) -> None:
    plain = make()
    with mirrored().scope():
        made, other = make(), make()
    assert isinstance(made, DistributedOptimizer)
    assert type(made) is type(other)
    assert made.__class__ is type(plain)
    assert isinstance(made, type(plain))
    assert str(type(made)) == str(type(plain))
    assert repr(made).partition(" at ")[0] == repr(plain).partition(" at ")[0]
    assert set(dir(made)) - set(dir(plain)) == {"_distributed_update"}

    configs = [keras.saving.serialize_keras_object(each) for each in (made, plain)]
    for config in configs:
        for inner in (config["config"], config["config"].get("inner_optimizer", {}).get("config", {})):
            inner.pop("name", None)
    assert configs[0] == configs[1]


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "__class__": lambda each: each.__class__.from_config(each.get_config()),
    "type": lambda each: type(each).from_config(each.get_config()),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies(copied: Callable[[Any], Any]) -> None:
    with mirrored().scope():
        made = keras.optimizers.Adam(0.25)
        inside = copied(made)
    outside = copied(made)
    assert isinstance(inside, DistributedOptimizer)
    assert outside.__class__ is keras.optimizers.Adam
    assert [getattr(each, "_distributed_update", None) is None for each in (inside, outside)] == [False, True]
    assert [float(each.learning_rate) for each in (inside, outside)] == [0.25, 0.25]


def test_optimizers_of_no_strategy_are_those_of_keras() -> None:
    with mirrored().scope():
        keras.optimizers.Adam()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        of_tensorflow = keras.optimizers.Adam()
    assert [type(each) for each in (of_tensorflow, keras.optimizers.Adam())] == [keras.optimizers.Adam] * 2
    assert not [each for each in vars(keras.optimizers.Adam).values() if hasattr(each, "_keras_strategies_wrapper")]


def test_after_training_it_is_used_outside_of_the_scope() -> None:
    with mirrored().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    model.optimizer.learning_rate = 0.5
    before = [np.asarray(each) for each in model.trainable_variables]
    model.optimizer.apply([tf.ones((3, 1)), tf.ones((1,))])
    for variable, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_allclose(np.asarray(variable), old - 0.5, rtol=1e-6)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_overrides_of_a_users_class(shard: Any) -> None:
    def trained(strategy: tf.distribute.Strategy) -> tuple[list[np.ndarray], list[str]]:
        keras.utils.set_random_seed(1)
        keras.backend.clear_session()
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(Halved(0.1, clipnorm=0.2, momentum=0.5), "mse")
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        return [np.asarray(each) for each in model.weights], model.optimizer.seen

    weights, paths = trained(tf.distribute.get_strategy())
    received, own_paths = trained(mirrored(shard=shard))
    assert own_paths == paths
    for one, other in zip(weights, received, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


def test_an_optimizer_is_built_in_a_conditional() -> None:
    def trained(strategy: tf.distribute.Strategy | None) -> list[Any]:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model: Any = gathered_by_hand()
            model.unbuilt = keras.optimizers.Adam(0.01)
        x = np.random.default_rng(0).normal(size=(11, 6)).astype("float32")
        losses = model.fit(x, x[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
        slots = [each.numpy() for each in model.unbuilt.variables]
        return [*model.get_weights(), *slots, losses]

    found, wanted = trained(strategies.MirroredStrategy(["CPU:0", "CPU:1"])), trained(None)
    for one, another in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, another, rtol=0, atol=TOLERANCE)


def test_gradients_of_two_strategies_are_refused() -> None:
    first, second = mirrored(), mirrored()
    with first.scope():
        optimizer = keras.optimizers.SGD(name="of_the_first")
    with second.scope():
        variable = keras.Variable(tf.ones([2]))
    with pytest.raises(ValueError, match="optimizer 'of_the_first' was made under another strategy"):
        second.run(lambda: optimizer.apply([tf.ones([2])], [variable]))


def test_an_optimizer_made_outside_is_refused_in_a_loop_of_ones_own() -> None:
    """Every replica would count the step, and a schedule would run ahead."""
    strategy = mirrored()
    optimizer = keras.optimizers.SGD(name="made_outside")
    with strategy.scope():
        variable = keras.Variable(tf.ones([2]))
    with pytest.raises(ValueError, match=r"optimizer 'made_outside' was not made under .*with strategy.scope"):
        strategy.run(lambda: optimizer.apply([tf.ones([2])], [variable]))


def test_classes_of_programs_can_be_collected() -> None:
    def train() -> weakref.ref[type]:
        class Own(keras.optimizers.SGD):
            pass

        with mirrored().scope():
            assert isinstance(Own(), DistributedOptimizer)
        return weakref.ref(Own)

    found = train()
    gc.collect()
    assert found() is None
