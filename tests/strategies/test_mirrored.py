"""MirroredStrategy: its refusals, and several of them in one process."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.strategies.parity.harness import features


def mirrored(num_replicas: int = 2, **kwargs: Any) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)], **kwargs)


def linear(**kwargs: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(**({"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"} | kwargs))
    return model


X = features(10, 3)
Y = X.sum(axis=1, keepdims=True)


class TestConstruction:
    def test_takes_all_logical_cpus_without_gpus(self) -> None:
        assert strategies.MirroredStrategy().num_replicas_in_sync == 8

    def test_is_tensorflows(self) -> None:
        strategy = mirrored()
        assert isinstance(strategy, tf.distribute.MirroredStrategy)
        assert strategy.num_replicas_in_sync == 2
        assert strategy.cluster_resolver is None

    def test_one_replica(self) -> None:
        with mirrored(1).scope():
            model = linear()
        plain = linear()
        assert model.fit(X, Y, verbose=0, shuffle=False).history == plain.fit(X, Y, verbose=0, shuffle=False).history

    @pytest.mark.parametrize(
        ("devices", "mesh", "says"),
        [
            (["CPU:0", "CPU:0"], None, "named twice"),
            (["CPU:0", "/device:CPU:0"], None, "named twice"),
            (["CPU:0", "CPU:99"], None, "CPU:99"),
            (["CPU:0", "GPU:0"], None, "GPU:0"),
            ([], None, "empty"),
            (["CPU:0", "NPU:one"], None, "NPU:one"),
            (["CPU:0", "CPU:1"], {"data": 3}, "need 3 devices"),
            (["CPU:0", "CPU:1"], {"data": 0}, "0"),
            (["CPU:0", "CPU:1"], {"dat": 2}, "dat"),
        ],
    )
    def test_refuses(self, devices: list[str], mesh: dict[str, int] | None, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            strategies.MirroredStrategy(devices, mesh=mesh)

    @pytest.mark.parametrize("mesh", [{"data": 2}, {"data": -1}, {"data": 2, "pipe": 1}])
    def test_takes_a_mesh_that_fits(self, mesh: dict[str, int]) -> None:
        assert mirrored(2, mesh=mesh).num_replicas_in_sync == 2

    @pytest.mark.parametrize(
        "ops",
        [tf.distribute.HierarchicalCopyAllReduce(), tf.distribute.ReductionToOneDevice()],
        ids=["copy", "one"],
    )
    def test_takes_cross_device_ops(self, ops: tf.distribute.CrossDeviceOps) -> None:
        with mirrored(2, cross_device_ops=ops).scope():
            model = linear()
        plain = linear()
        model.fit(X, Y, verbose=0, shuffle=False)
        plain.fit(X, Y, verbose=0, shuffle=False)
        np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)


class TestRefusedBeforeAnyStep:
    def test_optimizer_made_outside(self) -> None:
        optimizer = keras.optimizers.Adam(name="outside")
        with (
            mirrored().scope(),
            pytest.raises(ValueError, match=r"optimizer 'outside' was not made under .*with strategy.scope"),
        ):
            linear(optimizer=optimizer)

    def test_optimizer_of_another_strategy(self) -> None:
        with mirrored().scope():
            optimizer = keras.optimizers.Adam()
        with mirrored().scope(), pytest.raises(ValueError, match="same strategy object"):
            linear(optimizer=optimizer)

    def test_metric_made_outside(self) -> None:
        metric = keras.metrics.AUC(name="area")
        with mirrored().scope(), pytest.raises(ValueError, match="metric 'area' was not made"):
            linear(metrics=[metric])

    def test_model_made_outside(self) -> None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="lonely")
        with mirrored().scope(), pytest.raises(ValueError, match="model 'lonely' was not made"):
            model.compile("sgd", "mse")

    def test_model_fitted_in_a_foreign_scope(self) -> None:
        model = linear()
        with mirrored().scope(), pytest.raises(ValueError, match="was not made under"):
            model.fit(X, Y, verbose=0)

    def test_layer_made_outside(self) -> None:
        layer = keras.layers.Dense(1)
        layer.build((None, 3))
        with mirrored().scope(), pytest.raises(ValueError, match="dense"):
            keras.Sequential([keras.Input((3,)), layer]).compile("sgd", "mse")

    def test_dataset_without_batches(self) -> None:
        with pytest.raises(ValueError, match="batch"):
            mirrored().experimental_distribute_dataset(tf.data.Dataset.range(4))


class TestForgiven:
    def test_compiled_outside_the_scope(self) -> None:
        with mirrored().scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
        plain = linear(optimizer="sgd", metrics=["mae"])
        received = model.evaluate(X[:7], Y[:7], verbose=0)
        assert received == pytest.approx(plain.evaluate(X[:7], Y[:7], verbose=0), abs=1e-6)

    def test_learning_rate_reads_as_a_number(self) -> None:
        with mirrored().scope():
            model = linear()
        assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
        assert int(model.optimizer.iterations) == 0


class TestSeveralInOneProcess:
    def test_of_different_sizes_one_after_the_other(self) -> None:
        plain = linear()
        plain.fit(X, Y, verbose=0, shuffle=False, epochs=2)
        for num_replicas in (2, 4, 3, 2):
            with mirrored(num_replicas).scope():
                model = linear()
            model.fit(X, Y, verbose=0, shuffle=False, epochs=2)
            np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)

    def test_used_in_turn(self) -> None:
        models = []
        for num_replicas in (2, 3):
            with mirrored(num_replicas).scope():
                models.append(linear())
        for _ in range(2):
            for model in models:
                model.fit(X, Y, verbose=0, shuffle=False)
        np.testing.assert_allclose(models[0].get_weights()[0], models[1].get_weights()[0], atol=1e-6)

    def test_nested_scopes_are_refused_by_tensorflow(self) -> None:
        with (
            mirrored(2).scope(),
            pytest.raises(RuntimeError, match=r"Mixing different tf\.distribute\.Strategy"),
            mirrored(4).scope(),
        ):
            pass

    def test_made_after_tensorflow_has_run(self) -> None:
        linear().fit(X, Y, verbose=0)
        with mirrored().scope():
            model = linear()
        model.fit(X, Y, verbose=0)

    def test_stock_strategy_beside_ours_is_untouched(self) -> None:
        mirrored()
        stock = tf.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with stock.scope():
            model = linear()
        weight = model.layers[0].kernel.value
        assert type(weight).__module__.startswith("tensorflow")
        model.fit(X, Y, verbose=0, batch_size=10, shuffle=False)


class CountingReduction(tf.distribute.ReductionToOneDevice):
    """Counts the reductions of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches = 0

    def batch_reduce_implementation(self, *args: Any, **kwargs: Any) -> Any:
        self.num_batches += 1
        return super().batch_reduce_implementation(*args, **kwargs)


class TestGradientAccumulation:
    def test_reduces_once_per_real_step(self) -> None:
        reduction = CountingReduction()
        with mirrored(2, cross_device_ops=reduction).scope():
            model = linear(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), run_eagerly=True)
        model.fit(X[:8], Y[:8], batch_size=2, epochs=2, verbose=0)
        assert reduction.num_batches == 2

    def test_goes_on_from_a_file_saved_in_between(self, tmp_path: pathlib.Path) -> None:
        """After 2 of 4 micro-steps, each replica holds a part of the sum. The file holds the sum."""

        def make() -> keras.Model:
            return linear(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))

        plain = make()
        plain.fit(X[:8], Y[:8], batch_size=2, epochs=1, shuffle=False, verbose=0)
        with mirrored(2).scope():
            first = make()
        first.fit(X[:4], Y[:4], batch_size=2, shuffle=False, verbose=0)
        first.save(tmp_path / "half.keras")
        with mirrored(4).scope():
            second = keras.models.load_model(tmp_path / "half.keras")
        second.fit(X[4:8], Y[4:8], batch_size=2, shuffle=False, verbose=0)
        for received, expected in zip(second.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(received, expected, atol=1e-6)

    def test_what_is_read_in_between_is_the_whole_sum(self) -> None:
        """Keras' own test of the stock strategy finds the first replica's accumulator: here half of the sum."""
        strategy = mirrored(2)
        with strategy.scope():
            variable = keras.Variable([1.0, 2.0])
            optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0, 3.0]), variable)]))
        (gathered,) = optimizer._accumulated_gradients
        np.testing.assert_array_equal(gathered.numpy(), [2.0, 6.0])
        np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0, 3.0]), variable)]))
        np.testing.assert_array_equal(gathered.numpy(), [0.0, 0.0])
        np.testing.assert_array_equal(variable.numpy(), [-1.0, -4.0])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_variables_of_tensorflow_are_trained(num_devices: int, compiled: bool) -> None:
    """Gradients are reduced and clipped like those of Keras' variables, slots and accumulators included."""

    def trained(strategy: tf.distribute.Strategy, gradient: list[float]) -> list[list[float]]:
        with strategy.scope():
            variable = tf.Variable([1.0, 2.0])
            other = keras.Variable([1.0, 2.0])
            optimizer = keras.optimizers.Adam(0.5, clipnorm=0.1, weight_decay=0.01, gradient_accumulation_steps=2)

        def update() -> None:
            optimizer.apply_gradients([(tf.constant(gradient), variable), (tf.constant(gradient), other)])

        step = tf.function(strategy.run) if compiled else strategy.run
        for _ in range(4):
            step(update)
        assert variable.numpy().tolist() == other.numpy().tolist()
        return [np.asarray(each).tolist() for each in [variable, *optimizer.variables]]

    received = trained(mirrored(num_devices), [1.0, 3.0])
    expected = trained(tf.distribute.get_strategy(), [1.0 * num_devices, 3.0 * num_devices])
    assert received[0] != [1.0, 2.0]
    for one, another in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, another, atol=1e-6)


def test_an_error_on_one_replica_ends_the_step_on_all() -> None:
    strategy = mirrored(4)

    def step() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        if context.replica_id_in_sync_group == 2:
            raise ValueError("replica 2 has a problem")
        return context.all_reduce("SUM", tf.constant(1.0))

    for run in (strategy.run, tf.function(strategy.run)):
        with pytest.raises(ValueError, match="replica 2 has a problem"):
            run(step)
    assert float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)) == 4.0


def test_one_process_is_chief_of_itself() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    assert (strategy.rank, strategy.local_rank, strategy.world_size, strategy.is_chief) == (0, 0, 1, True)
