"""`strategy.check` finds layers whose losses no strategy can combine, and no others."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_ext
import strategies

L: Any = keras.layers
LOSSES: dict[str, Any] = {
    "mean": lambda x: ops.mean(ops.square(x)),
    "sum": lambda x: 0.01 * ops.sum(ops.square(x)),
    "penalty of all rows": lambda x: ops.sqrt(ops.mean(ops.square(x))),
    "product of means": lambda x: ops.sum(ops.mean(ops.softmax(x), axis=0) * ops.mean(ops.square(x), axis=0)),
}
FAULTS = ("penalty of all rows", "product of means")


class Adds(keras.layers.Layer):
    """Adds a loss in training, and draws random numbers."""

    def __init__(self, loss: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loss = loss
        self.seeds = keras.random.SeedGenerator(3)
        self.mean = keras.metrics.Mean("seen")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.update_state(ops.mean(x))
            x = x + 0 * keras.random.uniform(ops.shape(x), seed=self.seeds, dtype=self.compute_dtype)
            self.add_loss(LOSSES[self.loss](x))
        return x


class Around(keras.layers.Layer):
    """Calls an inner layer twice."""

    def __init__(self, inner: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(self.inner(x, training=training), training=training)


def model_of(*names: str) -> Any:
    """Returns a model with nested layers that add these losses, and with layers whose losses can be combined."""
    layers = [
        L.Dense(3, activity_regularizer="l2", kernel_regularizer="l1"),
        L.BatchNormalization(),
        L.Dropout(0.5),
        L.ActivityRegularization(0.1),
        *(Around(Adds(name, name="inner"), name=f"around_{index}") for index, name in enumerate(names)),
    ]
    return keras.Sequential([keras.Input((3,)), *layers])


def state_of(model: Any) -> list[Any]:
    layers = model._flatten_layers()
    variables = [*model.variables, *(v for metric in model.metrics for v in metric.variables)]
    return [
        *(np.asarray(variable) for variable in variables),
        *(np.asarray(seeds.state) for layer in layers for seeds in layer._seed_generators),
    ]


def test_losses_that_are_no_mean_over_rows_are_found_as_training_warns_of_them() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    for names in (("mean", "sum"), FAULTS):
        with strategy.scope():
            model = model_of(*names)
            model.compile("sgd", "mse")
        model(x, training=True)
        before, losses = state_of(model), model.losses
        own = [(list(layer._losses), set(layer._loss_ids)) for layer in model._flatten_layers()]
        drawn, named = keras.random.uniform((2,)), L.Dense(1).name
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = strategy.check(model)
        # The check has changed neither computed values nor the state of generators.
        for one, other in zip(state_of(model), before, strict=True):
            np.testing.assert_array_equal(one, other)
        assert len(model.losses) == len(losses)
        assert own == [(list(layer._losses), set(layer._loss_ids)) for layer in model._flatten_layers()]
        assert int(L.Dense(1).name.rpartition("_")[2]) == int(named.rpartition("_")[2] or 0) + 1
        assert not np.array_equal(keras.random.uniform((2,)), drawn)
        assert [finding.layer for finding in found] == [
            f"{model.name}/around_{index}/inner" for index, name in enumerate(names) if name in FAULTS
        ]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            model.fit(x, x, batch_size=8, verbose=0)
        assert bool(found) == any("A loss that a layer of" in str(each.message) for each in warned)
        # One device makes no difference.
        assert strategies.MirroredStrategy(["CPU:0"]).check(model) == ()
    finding = found[0]
    assert "each of 2 replicas computes it from its own rows" in finding.difference
    assert finding.fix.startswith(
        "keras_ext.replace_experts(model) makes the loss of a mixture of experts that it knows"
    )
    assert str(finding) == f"{finding.layer}: {finding.difference} {finding.fix}"


def test_models_without_a_graph_need_inputs() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.adds = Adds("product of means", name="adds")

        def call(self, inputs: Any) -> Any:
            # Without an argument `training`, Keras would pass on the step's.
            return self.adds(inputs["a"], training=True)

    with strategy.scope():
        model = Own()
    with pytest.raises(ValueError, match=r"Only a model that is built can be checked.*Received: 'own', not built"):
        strategy.check(model)
    x = {"a": np.ones((4, 3), "float32")}
    model(x)
    with pytest.raises(ValueError, match=r"give a batch of inputs.*Received: 'own' of class .*Own, inputs=None"):
        strategy.check(model)
    for inputs in (x, {"a": tf.TensorSpec((None, 3))}, {"a": tf.TensorSpec((6, 3))}):
        assert [finding.layer for finding in strategy.check(model, inputs=inputs)] == ["own/adds"]

    class OfLength(keras.layers.Layer):
        """Reads the length of a sequence in Python."""

        def call(self, x: Any) -> Any:
            return x if ops.shape(x)[1] > 2 else x + 1

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor(x.shape, x.dtype)

    with strategy.scope():
        taken = keras.Input((None, 2))
        model = keras.Model(taken, OfLength()(taken), name="of_length")
    with pytest.raises(ValueError, match=r"sizes that its inputs leave open.*Received: 'of_length' with inputs .*None"):
        strategy.check(model)
    assert strategy.check(model, inputs=np.ones((2, 3, 2), "float32")) == ()


def test_a_pipeline_adds_the_losses_of_micro_batches() -> None:
    for replicas in (1, 2):
        strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(2 * replicas)], mesh={"data": -1, "pipe": 2})
        with strategy.scope():
            layers = [
                keras.Input((4, 6)),
                L.Dense(6, activity_regularizer="l2"),
                keras_ext.MixtureOfExperts(4, 3, z_loss=0.1, name="experts"),
                L.Dense(6),
                keras_ext.MixtureOfExperts(4, 3, load_balancing_loss=0.0, z_loss=0.1),
            ]
            whole, cut = (
                keras_ext.PipelineModel(keras.Sequential(layers), num_microbatches=number, partition="uniform")
                for number in (1, 3)
            )
        # Replicas of a micro-batch sum the values that these layers need.
        assert strategy.check(whole) == ()
        (finding,) = strategy.check(cut)
        assert finding.layer == "experts"
        assert "of each of 3 micro-batches" in finding.difference
        assert finding.fix.startswith("Use num_microbatches=1, and check again")


def test_all_strategies_have_it() -> None:
    classes = (strategies.MultiWorkerMirroredStrategy, strategies.HorovodStrategy, strategies.CentralStorageStrategy)
    assert all(each.check is strategies.MirroredStrategy.check for each in classes)
