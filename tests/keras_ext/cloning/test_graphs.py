"""Copies have their weights, and their optimizers' slots, in the order of the model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tests.keras_ext.cloning.copies import L, assert_like, each_copy, parallelized, staged
from tests.releases import has_keras
from tests.strategies.parity.harness import vectors


class Translator(keras.Model):
    """A model in KerasHub's style: functional, its layers are attributes, made before the graph in another order."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        self.decoder = L.Dense(units + 2, name="decoder")
        self.embedding = L.Dense(units, name="embedding")
        self.encoder = keras.Sequential([L.Dense(units + 1, name="second"), L.Dense(units, name="first")])
        source, target = keras.Input((6,), name="source"), keras.Input((6,), name="target")
        encoded = self.encoder(self.embedding(source))
        decoded = self.decoder(L.Add()([self.embedding(target), encoded]))
        super().__init__({"source": source, "target": target}, L.Dense(3, name="head")(decoded), **kwargs)
        self.units = units

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units, "name": self.name}


@each_copy
def test_weights_are_in_the_order_of_the_model(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    model = Translator(4)
    names = [weight.path.split("/")[-2] for weight in model.weights][::2]
    # Up to Keras 3.14 the order is that of the graph.
    by_attributes = ["decoder", "embedding", "second", "first", "head"]
    by_graph = ["embedding", "second", "first", "decoder", "head"]
    assert names == (by_attributes if has_keras("3.15") else by_graph)
    x = {"source": vectors() / 8, "target": vectors() / 4}
    copy = copied(model)
    assert_like(copy, model, x)
    for weights in (copy.weights, copy.trainable_weights, copy.variables):
        found = [weight.path.split("/")[-2] for weight in weights]
        assert list(dict.fromkeys(found)) == names
    # Nested in another model, and called twice there.
    source, target = keras.Input((6,), name="source"), keras.Input((6,), name="target")
    first, second = ({"source": a, "target": b} for a, b in ((source, target), (target, source)))
    outer = keras.Model({"source": source, "target": target}, L.Add()([model(first), model(second)]))
    assert_like(copied(outer), outer, x)


class Segmenter(keras.Model):
    """Like KerasHub's SAM: its graph uses layers of a model that is an attribute, but no layer of the graph."""

    def __init__(self, **kwargs: Any) -> None:
        source = keras.Input((6,), name="source")
        self.encoder = keras.Sequential([source, L.Dense(5, name="first"), L.Dense(4, name="second")])
        self.prompt = L.Dense(4, name="prompt")
        super().__init__(source, L.Add()([self.prompt(source), self.encoder.outputs[0]]), **kwargs)


@each_copy
def test_weights_are_in_the_order_of_models_beside_the_graph(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    model = Segmenter()
    assert_like(copied(model), model, vectors())


def test_slots_of_an_optimizer_are_in_the_order_of_the_model() -> None:
    keras.utils.set_random_seed(1)
    model = Translator(4)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = {"source": vectors(), "target": 2 * vectors()}
    model.train_on_batch(x, vectors()[:, :3])
    copy = parallelized(model)
    for each in (model, copy):
        each.train_on_batch(x, vectors()[:, :3])
    for mine, theirs in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


class Marked(keras.Model):
    """Like KerasHub's T5Gemma2: the model itself holds weights, and its graph uses them between layers."""

    def __init__(self, **kwargs: Any) -> None:
        source = keras.Input((6,), name="source")
        first, second = L.Dense(6, name="first"), L.Dense(4, name="second")
        mark = keras.Variable(keras.initializers.RandomNormal(), shape=(6,), name="mark")
        scale = keras.Variable(keras.initializers.Ones(), shape=(4,), trainable=False, name="scale")
        super().__init__(source, second(first(source) * 2 + mark) * scale, **kwargs)
        self.scale, self.mark = scale, mark


def test_weights_that_a_model_itself_holds_are_trained_in_its_copy() -> None:
    keras.utils.set_random_seed(1)
    model = Marked()
    model.scale.assign([1.0, 2.0, 3.0, 4.0])
    copy = parallelized(model)
    assert_like(copy, model, vectors())
    for each in (model, copy):
        each.compile("sgd", "mse")
        each.train_on_batch(vectors(), vectors()[:, :4])
    assert_like(copy, model, vectors(), atol=1e-6)
    assert copy.__class__ is Marked
    assert copy.mark is not model.mark
    # Also nested in another model.
    outer = keras.Sequential([keras.Input((6,)), model, L.Dense(3)])
    for copied in (parallelized, staged):
        assert_like(copied(outer), outer, vectors())
    with pytest.raises(ValueError, match=r"weights that the model itself holds.*'mark'"):
        staged(model)


def test_a_weight_that_is_used_outside_of_its_layer_stays_that_layer_s() -> None:
    keras.utils.set_random_seed(1)
    source = keras.Input((6,), name="source")
    first = L.Dense(6, use_bias=False, name="first")
    tied = keras.Model(source, L.Dense(4, name="second")(keras.ops.matmul(first(source), first.kernel)))
    copy = parallelized(tied, {"second": "column"})
    for each in (tied, copy):
        each.compile("sgd", "mse")
        each.train_on_batch(vectors(), vectors()[:, :4])
    assert_like(copy, tied, vectors(), atol=1e-6)
    with pytest.raises(ValueError, match=r"cannot be split.*Leave it out of the plan. Received: 'first'"):
        parallelized(tied, {"first": "column"})
    with pytest.raises(ValueError, match=r"what is between layers has none.*first/kernel"):
        staged(tied)
