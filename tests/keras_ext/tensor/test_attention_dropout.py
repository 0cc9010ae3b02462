"""Attention: where the initial weights and the dropout of split heads are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

from tests.keras_ext.tensor.attention_models import (
    LENGTH,
    SIZE,
    begun,
    classifier,
    grouped,
    multi,
    sequences,
)
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, labels

BOTH = {"data": 2, "tensor": 2}


class TestDropout:
    def scores(self, dropout: float, axes: Mapping[str, int]) -> tuple[Any, Any]:
        """Returns a layer whose shards have equal weights, and equal scores after the dropout of each shard."""
        ones = keras.initializers.Constant(0.1)
        with mesh_strategy(axes).scope():
            layer = multi(True, num_heads=2, dropout=dropout, seed=5, kernel_initializer=ones)
            layer.build((None, LENGTH, SIZE), (None, LENGTH, SIZE))
            scores = keras.ops.ones((NUM_ROWS, 1, LENGTH, LENGTH))
            return layer, [np.asarray(layer._drop(i, scores, training=True)) for i in range(2)] if dropout else []

    def test_masks_of_shards_differ(self) -> None:
        layer, (one, other) = self.scores(0.5, {"tensor": 2})
        assert np.mean(one == other) == pytest.approx(0.5, abs=0.1)
        assert [np.mean(each > 0) for each in (one, other)] == pytest.approx([0.5, 0.5], abs=0.1)
        devices = [seed.state.value.device for seed in layer._seeds_of_shards]
        assert [device[-5:] for device in devices] == ["CPU:0", "CPU:1"]

    def test_draws_nothing_in_inference(self) -> None:
        plain, split = (begun(multi, split, {"tensor": 2}, dropout=0.5)(sequences()) for split in (False, True))
        np.testing.assert_allclose(split, plain, atol=1e-6)

    @pytest.mark.parametrize("make", [multi, grouped])
    def test_trains(self, make: Any) -> None:
        with mesh_strategy(BOTH).scope():
            model = classifier(make(True, dropout=0.3))
        losses = model.fit(sequences(), labels(), epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]

    @pytest.mark.parametrize("make", [multi, grouped])
    @pytest.mark.parametrize("seed", [None, 7])
    def test_of_one_shard_is_that_of_the_plain_layer(self, make: Any, seed: int | None) -> None:
        plain, split = (
            begun(make, split, {"data": 1}, dropout=0.5, seed=seed)(sequences(), training=True)
            for split in (False, True)
        )
        np.testing.assert_array_equal(split, plain)


@pytest.mark.parametrize("make", [multi, grouped])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_begins_as_the_plain_layer_does(make: Any, dropout: float) -> None:
    arguments = {"dropout": dropout, "kernel_initializer": "orthogonal", "bias_initializer": "random_uniform"}
    plain, split = (begun(make, split, {"tensor": 2}, **arguments).get_weights() for split in (False, True))
    assert len(plain) == 10
    for one, other in zip(plain, split, strict=True):
        np.testing.assert_array_equal(one, other)
