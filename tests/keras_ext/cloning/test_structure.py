"""Layers of users' classes are copied as they are, whatever their constructors and configs do."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies import layer_api
from tests.keras_ext.cloning.copies import COPIES, L, assert_like, each_copy
from tests.strategies.parity.harness import vectors


class Scale:
    """An object that is not a layer, but holds one."""

    def __init__(self, dense: Any) -> None:
        self.dense = dense
        #: The layer that holds this one.
        self.owner: Any = None

    def __call__(self, x: Any) -> Any:
        return 2 * self.dense(x)


class Leaf(keras.Layer):
    """A layer whose config omits what determines its weights, and whose weights are not attributes."""

    def __init__(self, units: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        weights = [self.add_weight(shape=(6, units), name="kernel"), self.add_weight(shape=(units,), name="bias")]
        self.count = self.add_weight(shape=(), dtype="int32", trainable=False, name="count", initializer="ones")
        self.compute: Any = lambda x: x @ weights[0] + weights[1]

    def call(self, x: Any) -> Any:
        return self.compute(x) + keras.ops.cast(self.count, x.dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


class Holds(keras.Layer):
    """Refers to the layer around it through an object that holds that layer."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class Tangled(keras.Layer):
    """Holds layers in many ways; its constructor needs an argument that no config has, and can run only once."""

    made = 0

    def __init__(self, factors: Any) -> None:
        super().__init__()
        type(self).made += 1
        self.factors = factors
        self.leaf = Leaf(5)
        self.leaf.trainable = False
        self.dropout = L.Dropout(0.5)
        self.by_closure: Any = lambda x: self.leaf(x)
        self.by_method = self.half
        self.by_object = Scale(L.Dense(6))
        self.kept = [self.by_object.dense]
        self.by_partial = functools.partial(Tangled.add, self.by_object.dense)
        self.by_object.owner = self
        self.first = Holds(self.by_object)
        self.pairs = {"one": (self.leaf, [self.dropout])}

    def build(self, shape: Any) -> None:
        self.built = True

    def half(self, x: Any) -> Any:
        return self.by_object(x) / 2

    @staticmethod
    def add(dense: Any, x: Any) -> Any:
        return x + dense(x)

    def call(self, x: Any, training: bool | None = None) -> Any:
        y = self.by_partial(self.by_method(self.dropout(x, training=training))) * self.factors
        return keras.ops.concatenate([self.by_closure(y), self.pairs["one"][0](x)], axis=-1)


@each_copy
def test_what_layers_hold(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    tangled = Tangled(np.arange(6.0, dtype="float32"))
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), tangled, L.Identity()])
    made = Tangled.made
    copy = copied(model)
    assert Tangled.made == made
    assert_like(copy, model, vectors())
    [new] = [layer for layer in copy._flatten_layers() if type(layer) is Tangled]
    paths = [weight.path.removesuffix("_0") for weight in layer_api.joined(new.leaf.weights)]
    assert paths == [weight.path for weight in tangled.leaf.weights]
    assert new.by_object.owner is new
    assert new.first.held is new.by_object
    assert new.pairs["one"] == (new.leaf, [new.dropout])
    assert new.by_object is not tangled.by_object
    assert new.by_object.dense is new.kept[0]
    assert {id(layer) for layer in new._flatten_layers()}.isdisjoint(id(each) for each in model._flatten_layers())
    assert not {id(weight) for weight in copy.variables} & {id(weight) for weight in model.variables}
    assert new.leaf.trainable_weights == []
    assert new.leaf.count.dtype == "int32"
    # The copy draws the same values, and has its own state.
    drawn = [each.seed_generator.state.numpy() for each in (new.dropout, tangled.dropout)]
    np.testing.assert_array_equal(*drawn)
    new(vectors(), training=True)
    assert (tangled.dropout.seed_generator.state.numpy() == drawn[1]).all()


class Factors:
    """An object with variables and generators that Keras does not track."""

    def __init__(self) -> None:
        self.one = keras.Variable(2.0, name="one")
        self.more = [keras.Variable(3.0, name="two"), {"three": keras.Variable(np.full(6, 4.0, "float32"), name="3")}]
        self.drawn = [keras.random.SeedGenerator(7)]


class Secretive(keras.Layer):
    """Holds variables where Keras does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(6)
        self.factors = Factors()
        closed_over = keras.Variable(5.0, name="five")
        self.compute: Any = lambda x: x * closed_over

    def call(self, x: Any) -> Any:
        two, three = self.factors.more[0], self.factors.more[1]["three"]
        return self.compute(self.dense(x)) * self.factors.one + two * three


@each_copy
def test_variables_that_keras_does_not_track_keep_their_values(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    secretive = Secretive()
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), secretive, L.Identity()])
    secretive.factors.drawn[0].next()
    copy = copied(model)
    assert_like(copy, model, vectors())
    [new] = [layer for layer in copy._flatten_layers() if isinstance(layer, Secretive)]
    state, its = (each.factors.drawn[0].state for each in (secretive, new))
    np.testing.assert_array_equal(state.numpy(), its.numpy())
    # Its own: what is set in the model does not change the copy.
    expected = np.asarray(copy(vectors()))
    secretive.factors.one.assign(9.0)
    np.testing.assert_array_equal(np.asarray(copy(vectors())), expected)


class Compiled(keras.Layer):
    """Computes with a `tf.function` that only its constructor can make."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.dense = L.Dense(units)
        self.compiled = tf.function(self.dense.__call__)

    def call(self, x: Any) -> Any:
        return self.compiled(x)


class Told(Compiled):
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class Untold(Compiled):
    def __init__(self, units: Any) -> None:
        super().__init__(int(units[0]))


@each_copy
def test_what_cannot_be_copied_is_made_of_its_config_or_named(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), Told(6), L.Identity()])
    assert_like(copied(model), model, vectors())
    model = keras.Sequential([keras.Input((6,)), Untold(np.array([6])), L.Identity()])
    message = r"(?s)'untold.*cannot be created from it: implement get_config\(\) of Untold .*NotImplementedError"
    with pytest.raises(ValueError, match=message):
        copied(model)


class Named(keras.Model):
    """A model in KerasHub's style: functional, with its own attributes."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        self.tower = keras.Sequential([keras.Input((6,)), L.Dense(units)], name="tower")
        self.steps = [L.Dense(units), L.Dense(units)]
        x = inputs = keras.Input((6,))
        for layer in (self.tower, *self.steps):
            x = layer(x)
        super().__init__(inputs, x, **kwargs)
        self.units = units
        self.beside = L.Dense(2)

    def shown(self, x: Any) -> Any:
        return self.steps[1](x)

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units, "name": self.name}


def test_a_model_of_a_users_class_stays_one() -> None:
    from tests.keras_ext.cloning.copies import parallelized

    keras.utils.set_random_seed(1)
    model = Named(6, name="own")
    copy = parallelized(model)
    assert copy.__class__ is Named
    assert (copy.name, copy.units, copy.get_config()) == ("own", 6, model.get_config())
    assert_like(copy, model, vectors())
    assert copy.tower is copy.layers[1]
    assert copy.steps[1] is copy.layers[3]
    assert type(copy.beside) is L.Dense
    assert copy.beside is not model.beside
    np.testing.assert_allclose(copy.shown(vectors()), model.shown(vectors()), atol=1e-6)
    outer = keras.Sequential([keras.Input((6,)), model, L.Dense(3)])
    assert parallelized(outer).layers[0].__class__ is Named


class Counts:
    """Makes state, a metric and a layer when Keras builds a model, as its constructor does.

    A mix-in before one of Keras' classes, which has the `build` that it calls.
    """

    def build(self: Any, shape: Any = None) -> None:
        super().build(shape)  # type: ignore[misc]
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        self.tracker = keras.metrics.Mean(name="tracked")
        self.beside = L.Dense(2)
        self.beside.build((None, 6))


class Counting(Counts, keras.Model):
    """A Functional model that makes more when it is built."""


class CountingSequence(Counts, keras.Sequential):
    """A Sequential that makes more when it is built."""


def counting() -> Any:
    inputs = keras.Input((6,))
    return Counting(inputs, L.Dense(4)(L.Dense(4)(inputs)))


@pytest.mark.parametrize(
    ("make", "copied"),
    [
        (counting, COPIES["parallelize"]),
        (counting, COPIES["PipelineModel"]),
        (lambda: CountingSequence([keras.Input((6,)), L.Dense(4)]), COPIES["parallelize"]),
    ],
    ids=["split", "in stages", "split Sequential"],
)
def test_what_a_model_makes_when_it_is_built_is_copied(make: Any, copied: Any) -> None:
    model = make()
    model.seen.assign(3.0)
    model.beside.kernel.assign(tf.ones((6, 2)))
    copy = copied(model)
    assert [each for each in copy.weights if each.path.endswith("seen")] == [copy.seen]
    assert copy.seen is not model.seen
    assert float(copy.seen.numpy()) == 3.0
    assert copy.tracker is not model.tracker
    assert sum(each is copy.tracker for each in copy._metrics) == len(copy._metrics) == 1
    if not isinstance(model, keras.Sequential):
        # A Sequential's layers are those of its sequence.
        assert copy.beside is not model.beside
        assert sum(each is copy.beside for each in copy._flatten_layers()) == 1
    np.testing.assert_array_equal(copy.beside.kernel, np.ones((6, 2)))
