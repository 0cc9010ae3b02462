"""Copies have their weights, and optimizers their slots, in the order of the model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.keras_ext.cloning.copies import L, assert_like, each_copy, parallelized
from tests.releases import has_keras
from tests.strategies.parity.harness import vectors


class Translator(keras.Model):
    """As KerasHub writes models: of a graph, whose layers are attributes, made in another order, before it."""

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
    # Up to Keras 3.14 it is the order of the graph.
    by_attributes = ["decoder", "embedding", "second", "first", "head"]
    by_graph = ["embedding", "second", "first", "decoder", "head"]
    assert names == (by_attributes if has_keras("3.15") else by_graph)
    x = {"source": vectors() / 8, "target": vectors() / 4}
    copy = copied(model)
    assert_like(copy, model, x)
    for weights in (copy.weights, copy.trainable_weights, copy.variables):
        found = [weight.path.split("/")[-2] for weight in weights]
        assert list(dict.fromkeys(found)) == names
    # Inside of another model, and called twice there.
    source, target = keras.Input((6,), name="source"), keras.Input((6,), name="target")
    first, second = ({"source": a, "target": b} for a, b in ((source, target), (target, source)))
    outer = keras.Model({"source": source, "target": target}, L.Add()([model(first), model(second)]))
    assert_like(copied(outer), outer, x)


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
