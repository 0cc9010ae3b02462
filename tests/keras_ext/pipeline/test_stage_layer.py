"""PipelineStage: the layers of one stage as one layer, on its device."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.pipeline.test_model import skipping
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.harness import labels, vectors

L = keras.layers


def stages() -> list[Any]:
    return [
        keras_ext.PipelineStage([keras.Input((6,)), L.Dense(8, "tanh", name="a"), L.Dropout(0.0, seed=1)], stage=0),
        keras_ext.PipelineStage([L.Dense(8, "tanh", name="b"), L.BatchNormalization()], stage=1, name="second"),
    ]


def layers() -> list[Any]:
    return [keras.Input((6,)), L.Dense(8, "tanh"), L.Dense(8, "gelu"), L.Dense(8, "tanh"), L.Dense(3, "softmax")]


def compiled(model: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "sparse_categorical_crossentropy")
    return model


def test_what_a_stage_holds_is_on_its_device() -> None:
    with mesh_strategy({"pipe": 2}).scope():
        first, second = stages()
        second.build((None, 8))
        third = keras_ext.PipelineStage([L.Dropout(0.5)], stage=3)
    for stage, device in ((first, "CPU:0"), (second, "CPU:1"), (third, "CPU:1")):
        # Includes the state of the Dropout, which is made with the layer.
        assert {variable.value.device[-5:] for variable in stage.variables} == {device}
        assert stage.variables


def test_by_itself_it_computes_its_layers() -> None:
    plain = keras.Sequential(layers())
    with mesh_strategy({"pipe": 2}).scope():
        stage = keras_ext.PipelineStage(plain, stage=1)
        assert stage.built
        np.testing.assert_array_equal(stage(vectors()), plain(vectors()))
        again = keras_ext.PipelineStage.from_config(stage.get_config())
    assert (again.name, again.stage, again.built) == (stage.name, 1, True)


def test_a_list_of_layers() -> None:
    def make(split: bool) -> Any:
        if not split:
            return compiled(keras.Sequential(layers()))
        return compiled(keras_ext.PipelineModel(layers(), num_microbatches=3, partition="uniform"))

    assert_parity(make, vectors(), labels(), {"data": 2, "pipe": 2}, predict=True)


def test_explicit_stages() -> None:
    def make(split: bool) -> Any:
        if not split:
            return compiled(keras.Sequential(layers()))
        given = [
            keras_ext.PipelineStage([keras.Input((6,)), L.Dense(8, "tanh"), L.Dense(8, "gelu")], stage=0),
            keras_ext.PipelineStage([L.Dense(8, "tanh")], stage=1),
            L.Dense(3, "softmax"),
        ]
        model = keras_ext.PipelineModel(given, num_microbatches=3)
        assert [len(stage) for stage in model.partition.stages] == [1, 2]
        return compiled(model)

    assert_parity(make, vectors(), labels(), {"pipe": 2}, predict=True)


def test_stages_in_a_functional_model() -> None:
    def make(split: bool) -> Any:
        x = keras.Input((6,))
        wrap = keras_ext.PipelineStage if split else lambda layers, stage: keras.Sequential(layers)
        h = wrap([L.Dense(8, "tanh"), L.Dense(8, "tanh")], 0)(x)
        h = L.Add()([wrap([L.Dense(8, "tanh")], 1)(h), h])
        model = keras.Model(x, wrap([L.Dense(3, "softmax")], 2)(h))
        return compiled(keras_ext.PipelineModel(model, num_microbatches=4) if split else model)

    assert_parity(make, vectors(), labels(), {"pipe": 3}, predict=True)


def test_in_files_it_is_a_sequential(tmp_path: pathlib.Path) -> None:
    with mesh_strategy({"pipe": 2}).scope():
        model = compiled(keras_ext.PipelineModel(stages(), num_microbatches=2))
    model.fit(vectors(), labels(), verbose=0)
    model.save(tmp_path / "stages.keras")
    plain = keras.models.load_model(tmp_path / "stages.keras")
    assert [type(layer) for layer in plain.layers[1:]] == [keras.Sequential, keras.Sequential]
    np.testing.assert_allclose(plain.predict(vectors(), verbose=0), model.predict(vectors(), verbose=0), atol=1e-6)


def test_refuses() -> None:
    with pytest.raises(ValueError, match="stage=-1"):
        keras_ext.PipelineStage([L.Dense(2)], stage=-1)
    with pytest.raises(ValueError, match=r"layers=\[\]"):
        keras_ext.PipelineStage([])
    first, second = stages()
    with pytest.raises(ValueError, match=r"numbered 0 to 1 .* stages \[1, 0\]"):
        keras_ext.PipelineModel([keras.Input((6,)), second, keras_ext.PipelineStage([L.Dense(2)], 0)])
    with pytest.raises(ValueError, match="define 2 stages"):
        keras_ext.PipelineModel([first, keras_ext.PipelineStage([L.Dense(2)], 1)], 3)
    with pytest.raises(ValueError, match=r"begin with a keras\.Input"):
        keras_ext.PipelineModel([L.Dense(2), L.Dense(2)], 2)
    with pytest.raises(ValueError, match="num_stages=4"), mesh_strategy({"pipe": 2}).scope():
        keras_ext.PipelineModel(skipping(), 4)
