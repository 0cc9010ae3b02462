"""The mesh axis "tensor" in one process: experts split along `hidden_dim`, with the numbers of one device."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api
from tests.keras_ext.expert import clicks

HIDDEN = 10
_UP, _DOWN = (clicks.EXPERTS, clicks.FEATURES, HIDDEN), (clicks.EXPERTS, HIDDEN, clicks.FEATURES)
SHAPES = {
    **{f"{name}_kernel": shape for name, shape in (("gate", _UP), ("up", _UP), ("down", _DOWN))},
    **{f"{name}_bias": (clicks.EXPERTS, size) for name, size in (("gate", HIDDEN), ("up", HIDDEN), ("down", 8))},
}


@functools.cache
def plain(optimizer: str) -> list[Any]:
    return clicks.found(clicks.model(None, {}, optimizer))


def spread(axes: Mapping[str, int], **options: Any) -> strategies.MirroredStrategy:
    size = int(np.prod(list(axes.values())))
    return strategies.MirroredStrategy([f"CPU:{k}" for k in range(size)], mesh=axes, **options)


def banks_of(model: Any) -> dict[str, Any]:
    [mixture] = [layer for layer in model._flatten_layers() if isinstance(layer, keras_ext.MixtureOfExperts)]
    inner = mixture.by_name()
    return {
        f"{name}_{kind}": getattr(inner[name], kind) for name in ("gate", "up", "down") for kind in ("kernel", "bias")
    }


@pytest.mark.parametrize(
    ("axes", "optimizer", "options"),
    [
        pytest.param({"tensor": 2}, "accumulation", {}, marks=pytest.mark.parity_all),
        ({"data": 2, "tensor": 2}, "adam", {}),
        ({"expert": 2, "tensor": 2}, "adam", {}),
        pytest.param({"data": 2, "tensor": 2}, "adagrad", {"shard": "optimizer"}, marks=pytest.mark.parity_all),
        pytest.param({"data": 2, "tensor": 2}, "adam", {"shard": "weights"}, marks=pytest.mark.parity_all),
        pytest.param({"pipe": 2, "tensor": 2}, "adam", {}, marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_the_numbers_of_one_device(
    axes: Mapping[str, int], optimizer: str, options: dict[str, Any], tmp_path: Any
) -> None:
    strategy = spread(axes, **options)
    model = clicks.model(strategy, axes, optimizer)
    clicks.assert_same(clicks.found(model), plain(optimizer))
    for name, bank in banks_of(model).items():
        assert tuple(bank.shape) == SHAPES[name]
        # The bias that is added to the sum is not split.
        assert isinstance(bank, layer_api.SplitWeight) == (name != "down_bias")
        for index, shard in enumerate(bank.shards if name != "down_bias" else ()):
            assert shard.shape[bank.dim] == HIDDEN // 2
            held = shard.value.values
            if "expert" in axes:
                assert [each.shape[0] for each in held] == [clicks.EXPERTS // 2] * 2
            if "pipe" not in axes:
                assert [int(each.device[-1]) for each in held] == [index + 2 * replica for replica in range(len(held))]
    if optimizer != "accumulation":
        return
    model.save(tmp_path / "clicks.keras")
    opened = keras.models.load_model(tmp_path / "clicks.keras")
    x, _ = clicks.data()
    np.testing.assert_allclose(opened.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
    with strategy.scope():
        again = keras_ext.replace_experts(opened)
    assert isinstance(banks_of(again)["up_kernel"], layer_api.SplitWeight)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6)


def small(**arguments: Any) -> Any:
    keras.utils.set_random_seed(4)
    given = {"use_bias": True, "bias_initializer": "normal", **arguments}
    mixture = keras_ext.MixtureOfExperts(4, 6, name="mixture", **given)
    model = keras.Sequential([keras.Input((5, 8)), mixture, keras.layers.Dense(2, name="after")])
    model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3), "mse")
    return model


def trained(model: Any) -> list[Any]:
    x = np.random.default_rng(1).normal(size=(12, 5, 8)).astype("float32")
    logs = model.fit(x, x[..., :2], batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*logs.values(), model.predict(x, verbose=0), *model.get_weights()]


def test_parallelize_cuts_the_experts_of_a_plain_model() -> None:
    # Two matrices, dropped choices, a penalty over all elements, and norms over the split dim.
    plain = small(
        gated=False, capacity_factor=0.7, kernel_regularizer="l2", kernel_constraint=keras.constraints.MaxNorm(0.5, 1)
    )
    trained(plain)
    with spread({"tensor": 2}).scope():
        plan = keras_ext.default_plan(plain)
        assert {path: choice.kind for path, choice in plan.items()} == {"mixture": "hidden", "after": "column"}
        # Each device has half of 192 + 24 + 192 parameters, and all 64 of the router and the last bias.
        assert re.search(r"mixture +MixtureOfExperts +hidden +whole +472 +268\n", str(plan))
        split = keras_ext.parallelize(plain)
        assert keras_ext.default_plan(split)["mixture"].kind == "hidden"
        for kind in (None, "gathered"):
            with pytest.raises(ValueError, match=r"for 'mixture', a MixtureOfExperts, which can be \['hidden'\]"):
                keras_ext.parallelize(plain, {"mixture": kind})
    clicks.assert_same(trained(split), trained(plain))

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(split(x, training=True) ** 2)
        return tape.gradient(value, [each.value for each in split.trainable_variables])

    run = tf.function(lambda x: split.distribute_strategy.run(gradients, args=(x,)))
    graph = run.get_concrete_function(tf.zeros([4, 5, 8])).graph
    products = [op.device[-5:] for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2")]
    # Two products for each of four experts, and their gradients, on both devices; the router's on the first one.
    assert 24 <= products.count("CPU:1") < products.count("CPU:0") <= products.count("CPU:1") + 3


def test_mixed_precision() -> None:
    # Under a mixed policy, Keras casts variables when they are accessed, and so reads them.
    expected = trained(small(dtype="mixed_float16"))
    with spread({"expert": 2, "tensor": 2}).scope():
        model = small(dtype="mixed_float16")
    for one, other in zip(trained(model), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_refusals() -> None:
    with spread({"tensor": 2}).scope():
        with pytest.raises(ValueError, match=r"equal parts of hidden_dim of the experts.*8 or 10.*Received: 9"):
            keras_ext.MixtureOfExperts(4, 9).build((None, 4))
        with pytest.raises(ValueError, match=r"cut along hidden_dim.*Received: activation=<function softmax"):
            keras_ext.MixtureOfExperts(4, 8, activation="softmax").build((None, 4))
    with spread({"data": 2}).scope():
        keras_ext.MixtureOfExperts(4, 9, activation="softmax").build((None, 4))
