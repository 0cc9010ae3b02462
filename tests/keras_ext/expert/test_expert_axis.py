"""The mesh axis "expert" in one process: weights, slots and logs of one device, and experts only on their replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.keras_ext.expert import clicks, overlap
from tests.strategies.gpu_graphs.programs import steps_of


def spread(axes: Mapping[str, int], **options: Any) -> strategies.MirroredStrategy:
    size = int(np.prod(list(axes.values())))
    return strategies.MirroredStrategy([f"CPU:{k}" for k in range(size)], mesh=axes, **options)


@pytest.mark.parametrize(
    ("axes", "optimizer", "options"),
    [
        ({"expert": 2}, "accumulation", {}),
        pytest.param({"data": 2, "expert": 2}, "adam", {}, marks=pytest.mark.parity_all),
        ({"expert": 2, "pipe": 2}, "adam", {}),
        pytest.param({"expert": 2, "pipe": 2}, "adam, micro-batches", {}, marks=pytest.mark.parity_all),
        pytest.param({"expert": 4}, "adam", {}, marks=pytest.mark.parity_all),
        pytest.param({"data": 2, "expert": 2}, "adagrad", {}, marks=pytest.mark.parity_all),
        pytest.param({"data": 1, "expert": 2}, "adam", {"shard": "weights"}, marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_the_numbers_of_one_device(
    axes: Mapping[str, int], optimizer: str, options: dict[str, Any], tmp_path: Any
) -> None:
    strategy = spread(axes, **options)
    assert strategy.mesh.axes == axes
    assert strategy.num_replicas_in_sync == axes.get("data", 1) * axes["expert"]
    model = clicks.model(strategy, axes, optimizer)
    clicks.assert_trained_as(clicks.trained(model), clicks.plain(optimizer))
    held = clicks.own_rows(model)
    # Six expert weights, and the table.
    assert len(held) == 7
    assert all(shape[0] == clicks.EXPERTS // axes["expert"] for shape in held if len(shape) > 2)
    if optimizer != "accumulation":
        return
    clicks.assert_same(clicks.inferred(model), clicks.plain(optimizer)[-2:])
    model.save(tmp_path / "clicks.keras")
    opened = keras.models.load_model(tmp_path / "clicks.keras")
    x, _ = clicks.data()
    np.testing.assert_allclose(opened.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
    with strategy.scope():
        again = keras_ext.replace_experts(opened)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
    assert len(clicks.own_rows(again)) == 6


def test_the_shared_expert_does_not_wait_for_the_exchange_of_tokens() -> None:
    model = overlap.model(spread({"expert": 2}))
    model.fit(overlap.data(), overlap.data(), batch_size=overlap.ROWS, verbose=0)
    overlap.assert_apart(steps_of(model.train_function)[0].graph, 2)


def test_rows_are_in_float32_where_layers_compute_in_half() -> None:
    def trained(scope: Any, table: Any) -> Any:
        with scope:
            keras.utils.set_random_seed(5)
            tokens = keras.Input((4,), dtype="int32")
            rows = table(clicks.ROWS, 8, dtype="mixed_float16")(tokens)
            made = keras_ext.MixtureOfExperts(4, 4, dtype="mixed_float16")(rows)
            model = keras.Model(tokens, keras.layers.Dense(1)(made))
            model.compile("sgd", "mse")
        x, _ = clicks.data()
        model.fit(x, np.ones((35, 4, 1)), batch_size=16, verbose=0, shuffle=False)
        return model

    model = trained(spread({"expert": 2}).scope(), keras_ext.ShardedEmbedding)
    one = trained(contextlib.nullcontext(), keras.layers.Embedding)
    assert len(clicks.own_rows(model)) == 4
    for weight, expected in zip(model.get_weights(), one.get_weights(), strict=True):
        # Their gradients have half precision.
        np.testing.assert_allclose(weight, expected, atol=1e-4)


def test_refusals() -> None:
    with spread({"expert": 2}).scope():
        with pytest.raises(ValueError, match=r"use a number of experts that 2 divides\. Received: num_experts=3"):
            keras_ext.MixtureOfExperts(3, 4).build((None, 4))
        with pytest.raises(ValueError, match=r"Regularizers of experts read.*mesh without 'expert'"):
            keras_ext.MixtureOfExperts(4, 4, kernel_regularizer="l2").build((None, 4))
        mixture = keras_ext.MixtureOfExperts(4, 4)
        inputs = keras.Input((4,))
        model = keras.Model(inputs, mixture(inputs))
        model.compile(keras.optimizers.Lamb(), "mse")
        with keras.RematScope("full"):
            again = keras.Sequential([inputs, keras_ext.MixtureOfExperts(4, 4)])
        again.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"over replicas cannot be recomputed.*outside of the RematScope"):
        again.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)
    with pytest.raises(ValueError, match=r"Lamb looks at whole weights.*experts"):
        model.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)
    with pytest.raises(ValueError, match="name it directly after 'data'"):
        spread({"data": 2, "tensor": 2, "expert": 1})
    with pytest.raises(ValueError, match=r"leave shard_size out\. Received: shard_size=4"):
        spread({"data": 2, "expert": 2}, shard="optimizer", shard_size=4)
