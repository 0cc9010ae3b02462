"""Optimizers, seeds and checks where a replica spans two processes: run by `test_suites` in both, never collected.

Shards are those of `keras_ext`; stages are layers of this file, which one process each holds, and which need no
pipeline. As in the other suites, both ranks find the same results.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api
from tests.releases import marks_of
from tests.strategies.processes import mesh_strategies
from tests.strategies.processes.mesh_strategies import ENGINE, new_strategy

TOLERANCE = 1e-6


def on(axis: str) -> Any:
    return mesh_strategies.on({axis: 2})


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on("tensor")


def job() -> Any:
    return on("tensor").extended.engine.process_group


def rank() -> int:
    return int(job().rank)


class HeldDense(keras.layers.Dense):
    """A dense layer whose weights one process along "pipe" holds and computes with; all processes get its outputs."""

    def __init__(self, units: int, position: int = 0, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.position = position

    def build(self, input_shape: Any) -> None:
        with layer_api.replica_parts().at(pipe=self.position):
            super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        parts = layer_api.replica_parts()
        between = parts.between("pipe")
        if between is None:
            return super().call(inputs, training)
        own = between.copied(inputs)
        if between.position == self.position:
            outputs = super().call(own, training)
        else:
            outputs = tf.zeros([tf.shape(own)[0], self.units]) + 0.0 * tf.reduce_sum(own)
        return between.summed(outputs)


def stages(*positions: int) -> keras.Model:
    """Returns staged layers between two layers that all processes hold; gradients flow back through all on each."""
    first = keras.layers.Dense(6, name="stem")
    hidden = [HeldDense(8, position, activation="tanh", name=f"h{i}") for i, position in enumerate(positions)]
    return keras.Sequential([keras.Input((6,)), first, *hidden, keras.layers.Dense(3, name="head")])


def held_by_one() -> keras.Model:
    """Returns a model that gives rank 0 nothing to train."""
    return keras.Sequential([keras.Input((6,)), HeldDense(3, 1, name="head")])


def plain() -> keras.Model:
    hidden = [keras.layers.Dense(8, "tanh", name="up"), keras.layers.Dense(8, name="down")]
    return keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(3, name="head")])


def shards() -> keras.Model:
    return keras_ext.parallelize(plain())


X = np.random.default_rng(0).standard_normal((22, 6)).astype("float32")
Y = 10 * np.abs(X).sum(axis=1, keepdims=True) * np.ones((1, 3), "float32")


def trained(make: Callable[[], keras.Model], optimizer: Callable[[], Any], strategy: Any = None) -> list[np.ndarray]:
    """Returns the weights, the optimizer's variables and the logs of two epochs, the last batch of which is short."""
    keras.utils.set_random_seed(7)
    scope = strategy or tf.distribute.get_strategy()
    with scope.scope():
        model = make()
        model.compile(optimizer(), "mse", metrics=["mae"])
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    slots = layer_api.values_of(model, layer_api.joined(model.optimizer.variables))
    return [*model.get_weights(), *slots, *(np.asarray(history[name]) for name in sorted(history))]


def assert_parity(make: Callable[[], keras.Model], optimizer: Callable[[], Any], axis: str) -> None:
    expected = trained(make, optimizer)
    found = trained(make, optimizer, on(axis))
    assert len(found) == len(expected)
    worst = max(
        float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(other)), initial=0.0))
        for one, other in zip(found, expected, strict=True)
    )
    sums = [float(np.asarray(each, "float64").sum()) for each in found]
    everywhere = job().gather(tf.constant([[worst, *sums]], tf.float64)).numpy()
    np.testing.assert_array_equal(everywhere[0, 1:], everywhere[1, 1:])
    assert everywhere[:, 0].max() <= TOLERANCE


opt = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "all weights' norm": lambda: opt.Adam(1e-2, global_clipnorm=0.05),
    "each weight's norm": lambda: opt.SGD(0.1, clipnorm=0.05),
    "values": lambda: opt.SGD(0.1, clipvalue=0.01),
    "gathered": lambda: opt.SGD(0.1, momentum=0.9, global_clipnorm=0.05, gradient_accumulation_steps=2),
    "averages": lambda: opt.AdamW(1e-2, weight_decay=0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4),
    "averages at the end": lambda: opt.Adam(1e-2, use_ema=True, ema_momentum=0.8),
    # In the first steps only the processes of some weights overflow.
    "scaled": lambda: opt.LossScaleOptimizer(opt.SGD(0.1, global_clipnorm=0.05), initial_scale=2.0**122),
    "MultiOptimizer": lambda: opt.MultiOptimizer(
        opt.OptimizerMap(opt.SGD(0.1, global_clipnorm=0.05), {".*bias.*": opt.Adam(0.01, clipnorm=0.1)})
    ),
}


def names(*seldom: str) -> list[Any]:
    """Returns the names of all optimizers; those in `seldom` need the flag."""
    return [
        pytest.param(name, marks=[*marks_of(name), *([pytest.mark.parity_all] if name in seldom else [])])
        for name in OPTIMIZERS
    ]


# The norm of all weights is contained in "gathered" and "scaled". A stage's process has whole gradients.
@pytest.mark.parametrize(
    "name", names("all weights' norm", "each weight's norm", "values", "averages", "averages at the end")
)
def test_optimizers_of_stages(name: str) -> None:
    assert_parity(functools.partial(stages, 0, 1), OPTIMIZERS[name], "pipe")


@pytest.mark.parametrize("name", [*names("all weights' norm", "values", "averages at the end"), "whole weights"])
def test_optimizers_of_shards(name: str) -> None:
    whole = functools.partial(opt.Lamb, 1e-2, global_clipnorm=0.05)
    assert_parity(shards, OPTIMIZERS.get(name, whole), "tensor")


@pytest.mark.parametrize(
    "name", [pytest.param("all weights' norm", marks=pytest.mark.parity_all), "gathered", "scaled"]
)
def test_a_process_without_trainable_weights(name: str) -> None:
    assert_parity(held_by_one, OPTIMIZERS[name], "pipe")


def test_each_process_holds_its_own() -> None:
    with on("pipe").scope():
        model = stages(0, 1)
        model.compile(opt.Adam(), "mse")
        model.optimizer.build(model.trainable_variables)
    model.fit(X, Y, batch_size=8, verbose=0)
    held = sum(strategies.bytes_per_device([*model.variables, *model.optimizer.variables]).values())
    # Each weight and its two slots.
    expected = 3 * 4 * (6 * 7 + 3 * 9 + (7 * 8 if rank() == 0 else 9 * 8))
    assert expected <= held < expected + 100
    assert model.count_params() == 6 * 7 + 7 * 8 + 9 * 8 + 3 * 9


def test_ranks_that_set_no_seed_draw_the_same() -> None:
    random.seed(rank())
    np.random.seed(rank())
    strategy = new_strategy({"tensor": 2})
    drawn = job().gather(tf.constant([[random.random(), np.random.random()]], tf.float64)).numpy()
    np.testing.assert_array_equal(drawn[0], drawn[1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def test_what_all_have_set_stays() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    new_strategy({"tensor": 2})
    assert random.random() == expected


class TestDifferences:
    """Each difference is refused on both ranks, and neither rank waits."""

    def test_meshes(self) -> None:
        with pytest.raises(ValueError, match=r"same mesh.*rank 0: mesh={'pipe': 2} \| rank 1: mesh={'tensor': 2}"):
            new_strategy({"tensor": 2} if rank() else {"pipe": 2})

    @pytest.mark.parametrize(
        ("axes", "reason"),
        [({"pipe": 3}, "Nearest sizes that fit: {'pipe': 2}"), ({"pipe": 2, "model": 1}, "Unknown mesh axis")],
    )
    def test_a_mesh_that_does_not_fit(self, axes: dict[str, int], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            new_strategy(axes)

    @pytest.mark.skipif(ENGINE != "HorovodStrategy", reason="its options")
    def test_options(self) -> None:
        with pytest.raises(
            ValueError, match=r"same bucket_bytes.*rank 0: bucket_bytes=1000 \| rank 1: bucket_bytes=1001"
        ):
            new_strategy({"tensor": 2}, bucket_bytes=1000 + rank())
        with pytest.raises(ValueError, match="Adasum looks at all of a weight's gradient"):
            new_strategy({"pipe": 2}, reduction="adasum")

    @pytest.mark.parametrize("entry", ["fit", "evaluate", "predict"])
    def test_models(self, entry: str) -> None:
        with on("pipe").scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3 + rank(), name="own")])
            model.compile("sgd", "mse")
        with pytest.raises(
            ValueError, match=r"different programs.*rank 0:.* variable .*own/kernel \(6, 3\).*rank 1.*\(6, 4\)"
        ):
            getattr(model, entry)(X, verbose=0)

    def test_optimizers(self) -> None:
        with on("pipe").scope():
            model = stages(0, 1)
            model.compile(opt.Adam(1e-3 * (1 + rank())), "mse")
        with pytest.raises(ValueError, match=r"rank 0: optimizer Adam.*rank 1: optimizer Adam"):
            model.fit(X, Y, verbose=0)

    def test_coordinates(self) -> None:
        with on("pipe").scope():
            model = stages(0, rank())
            model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=r"rank 0: variable .*h1/kernel.*'pipe': \[0\]} \| rank 1:.*'pipe': \[1\]"):
            model.fit(X, Y, verbose=0)

    def test_values(self) -> None:
        keras.utils.set_random_seed(rank())
        with on("pipe").scope():
            model = stages(0, 1)
            model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=r"different values of '.*stem/kernel'.*set_random_seed.*all ranks"):
            model.fit(X, Y, verbose=0)


def test_crossings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "strategies"):
        new_strategy({"pipe": 2})
    said = [record for record in caplog.records if "'pipe' crosses 2 processes" in record.message]
    assert len(said) == (1 if rank() == 0 else 0)


def test_a_spread_model_runs_uncompiled(caplog: pytest.LogCaptureFixture) -> None:
    with on("pipe").scope():
        model = stages(0, 1)
        model.compile("sgd", "mse", jit_compile=True)
    with caplog.at_level(logging.WARNING, "strategies"):
        model.fit(X, Y, batch_size=8, verbose=0)
    said = [record for record in caplog.records if "spread over several devices" in record.message]
    assert len(said) == (1 if rank() == 0 else 0)
