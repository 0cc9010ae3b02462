"""Plans of Keras models: they measure, print, and name meshes on which the model trains."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_ext
import strategies


def make_model() -> Any:
    x = ids = keras.Input((8,), dtype="int32")
    x = layers.Embedding(32, 16)(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x)])
    x = layers.Dense(16)(layers.Dense(32, "relu")(x))
    model = keras.Model(ids, layers.Dense(32)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_a_plan_names_a_mesh_on_which_the_model_trains() -> None:
    plan = keras_ext.training_plan(make_model, batch_size=8, num_devices=2)
    assert {tuple(each.layout.mesh.values()) for each in plan.search.best} == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    text = str(plan)
    assert text.splitlines()[0].split()[:3] == ["data", "pipe", "tensor"]
    assert ("Do not split, it fits" in text) == (not plan.splits)
    if plan.pipeline is None and not plan.rematerialize:
        # Of stages, a plan counts those that its times cut.
        memory = keras_ext.memory_plan(make_model, batch_size=8, mesh=plan.mesh, shard=plan.shard)
        assert plan.best.num_bytes == memory.together
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh=plan.mesh, shard=plan.shard)
    with strategy.scope():
        model = make_model()
        if plan.mesh["tensor"] > 1:
            model = keras_ext.parallelize(model)
        if plan.pipeline is not None:
            model = keras_ext.PipelineModel(model, partition="uniform", **plan.pipeline)
    model.fit(np.zeros((8, 8), "int32"), np.zeros((8, 8), "int32"), batch_size=8, verbose=0)


def test_a_batch_and_limits_of_memory_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)
    batch = np.ones((8, 8), "int32"), np.ones((8, 8), "int32")
    whole = keras_ext.memory_plan(make_model, batch_size=8, num_devices=2).together
    links = {"data": {"latency in microseconds": 1e6, "GB/s": {"1 MB": 1.0}}}
    plan = keras_ext.training_plan(
        make_model, batch_size=8, num_devices=2, batch=batch, device_bytes=whole, links=links
    )
    # Nine tenths of the memory of replicas: the model or its state is divided.
    assert plan.splits
    assert "of a device's" in str(plan)
    assert plan.seconds_of({"data": 2}) > 1 > plan.seconds_of({"tensor": 2})
    # Replicas that exchange for a second are slow.
    assert all(each.seconds > 1 for each in plan.search.best if each.layout.num_data > 1)


def test_other_devices_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)
    plan = keras_ext.training_plan(make_model, batch_size=8, num_devices=2, gpu="H100")
    assert plan.device_bytes == 80e9


def test_what_cannot_be_planned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)
    with pytest.raises(ValueError, match=r"batch_size is a number of at least 1. Received: batch_size=0"):
        keras_ext.training_plan(make_model, batch_size=0, num_devices=2)
    with pytest.raises(ValueError, match=r"returns a keras.Model that is compiled"):
        keras_ext.training_plan(lambda: keras.Sequential([layers.Dense(1)]), batch_size=8, num_devices=2)
    with pytest.raises(ValueError, match=r"No layout of 1 devices fits into 0.0 GB each"):
        keras_ext.training_plan(make_model, batch_size=8, num_devices=1, device_bytes=1.0)

    def demanding() -> Any:
        def loss(y_true: Any, y_pred: Any) -> Any:
            return keras.losses.mean_squared_error(keras.ops.reshape(y_true, (-1, 3)), y_pred)

        model = keras.Sequential([keras.Input((4,)), layers.Dense(8)])
        model.compile("adam", loss)
        return model

    with pytest.raises(ValueError, match=r"Give a batch, training_plan\(..., batch=\(x, y\)\)"):
        keras_ext.training_plan(demanding, batch_size=8, num_devices=1)


def test_a_plan_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    expected = make_model()
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    keras_ext.training_plan(make_model, batch_size=8, num_devices=1)
    model = make_model()
    assert [each.path for each in model.weights] == [each.path for each in expected.weights]
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_without_blocks_and_with_open_sizes_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)

    def plain() -> Any:
        # The layers are equal, so that any two stages fit, wherever the measured times cut.
        model = keras.Sequential([keras.Input((64,)), *[layers.Dense(64, "relu") for _ in range(4)]])
        model.compile("adam", "mse")
        return model

    whole = keras_ext.memory_plan(plain, batch_size=8, num_devices=2).together
    plan = keras_ext.training_plan(plain, batch_size=8, num_devices=2, device_bytes=whole)
    # There is nothing to recompute, and replicas do not fit.
    assert plan.splits
    assert not plan.rematerialize
    stages = next(each for each in plan.search.best if each.layout.num_stages == 2)
    assert stages.num_bytes is not None
    assert stages.num_bytes < whole
    with pytest.raises(ValueError, match=r"A mesh has sizes from 1 of the axes.*mesh=\{'dta': 2\}"):
        plan.seconds_of({"dta": 2})
    with pytest.raises(ValueError, match=r"schedule='foo'"):
        plan.seconds_of({"data": 2}, schedule="foo")
    with pytest.raises(ValueError, match=r"The links are those of the axes.*Received: dta"):
        plan.seconds_of({"data": 2}, links={"dta": {}})

    def open_size() -> Any:
        x = ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, layers.Dense(4)(layers.Embedding(8, 4)(x)))
        model.compile("sgd", "mse")
        return model

    batch = np.ones((4, 5), "int32"), np.ones((4, 5, 4), "float32")
    assert keras_ext.training_plan(open_size, batch_size=4, num_devices=1, batch=batch).mesh["data"] == 1
    assert keras_ext.training_plan(open_size, batch_size=4, num_devices=1).mesh["data"] == 1


def test_self_attention_sums_one_output_and_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_ext.planning.probes.ROUNDS", 1)

    def attention() -> Any:
        x = keras.Input((4, 8))
        model = keras.Model(x, layers.MultiHeadAttention(2, 4, name="attention")(x, x))
        model.compile("sgd", "mse")
        return model

    [share] = keras_ext.training_plan(attention, batch_size=4, num_devices=2).step.layers
    assert (share.num_exchanges, share.reduced_bytes) == (2, 2 * 4 * 8 * 4)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.ones((4, 8)), np.ones((4, 8))), r"batch_size=8, rows \{4\}"),
        ((np.ones((8, 8)),), r"Received: 1 parts"),
        ((np.ones((8, 8)), np.ones((8, 8)), np.ones(8)), r"Received: 3 parts"),
        (np.ones((8, 8)), r"Received: ndarray"),
    ],
)
def test_batches_of_another_form_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keras_ext.training_plan(make_model, batch_size=8, num_devices=2, batch=batch)
