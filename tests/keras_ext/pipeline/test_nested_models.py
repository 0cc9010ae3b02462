"""Nested models, such as a backbone, are cut inside, and models of a user's class stay of that class."""

from __future__ import annotations

import functools
import pathlib
import pickle
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.pipeline.graph_nodes import nodes_of
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy

L = keras.layers

IDS = (np.arange(14 * 5).reshape(14, 5) * 7) % 9
NEXT = np.roll(IDS, -1, axis=1)


@keras.saving.register_keras_serializable("tests")
class Task(keras.Model):
    """A model with a backbone, whose table it uses again, and with attributes and methods of its own."""

    def __init__(self, backbone: Any, temperature: float = 2.0, **kwargs: Any) -> None:
        self.backbone = backbone
        self.temperature = temperature
        outputs = backbone.get_layer("tokens")(backbone(backbone.input), reverse=True)
        super().__init__(backbone.input, outputs, **kwargs)
        self.compile(keras.optimizers.SGD(0.1))

    def compile(self, optimizer: Any, **kwargs: Any) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        super().compile(optimizer, loss=loss, weighted_metrics=["accuracy"], **kwargs)

    def cooled(self, ids: Any) -> Any:
        return self.predict(ids, verbose=0) / self.temperature

    def get_config(self) -> dict[str, Any]:
        return {"backbone": keras.saving.serialize_keras_object(self.backbone), "temperature": self.temperature}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        return cls(keras.saving.deserialize_keras_object(config["backbone"]), config["temperature"])


def backbone() -> Any:
    ids = keras.Input((5,), dtype="int32", name="ids")
    x = L.ReversibleEmbedding(9, 4, name="tokens")(ids)
    block = keras.Sequential(
        [keras.Input((5, 4)), L.Dense(8, "gelu", name="dense"), L.Dense(4, name="down")], name="block"
    )
    x = L.Add(name="add")([x, block(x)])
    # The same name in another model.
    y = keras.Input((5, 4))
    head = keras.Model(y, L.Dense(4, "tanh", name="dense")(y), name="head")
    return keras.Model(ids, L.Dropout(0.0)(head(x)), name="backbone")


def task(temperature: float = 2.0) -> Task:
    keras.utils.set_random_seed(3)
    return Task(backbone(), temperature, name="task")


def staged(split: bool, **arguments: Any) -> Any:
    model: Any = task()
    if split:
        model = keras_ext.PipelineModel(model, num_microbatches=2, **{"partition": "uniform", **arguments})
    return model


@pytest.mark.parametrize(
    ("axes", "arguments"),
    [
        ({"pipe": 2}, {"partition": ["backbone/head/dense"]}),
        ({"data": 2, "pipe": 2}, {"schedule": "zb_h1"}),
        ({"pipe": 2}, {"schedule": "interleaved_1f1b"}),
    ],
    ids=str,
)
def test_a_task_is_cut_inside_its_backbone_and_trains_as_it_was_compiled(axes: Any, arguments: Any) -> None:
    assert_parity(functools.partial(staged, **arguments), IDS, NEXT, axes, predict=True)


# Keras does not compile a loaded model whose class overrides `compile`.
@pytest.mark.filterwarnings("ignore:`compile\\(\\)` was not called")
def test_it_stays_a_task_in_the_program_and_in_files(tmp_path: pathlib.Path) -> None:
    plain = task(temperature=3.0)
    plain.fit(IDS, NEXT, epochs=2, verbose=0)
    with mesh_strategy({"pipe": 2}).scope():
        split = keras_ext.PipelineModel(plain, num_microbatches=2, partition="uniform")
    assert isinstance(split, Task)
    assert isinstance(split, keras_ext.PipelineModel)
    assert [layer.name for layer in split.layers] == [layer.name for layer in plain.layers]
    assert [weight.path for weight in split.weights] == [weight.path for weight in plain.weights]
    # The attributes are the copies that the stages compute with, and what is no layer is as it was.
    inside = [layer for stage in split._stages for layer in stage.layers]
    assert any(split.backbone.get_layer("tokens") is layer for layer in inside)
    assert split.optimizer is not plain.optimizer
    assert int(split.optimizer.iterations) == int(plain.optimizer.iterations)
    np.testing.assert_allclose(split.cooled(IDS), plain.cooled(IDS), rtol=0, atol=1e-6)

    split.save(tmp_path / "task.keras")
    split.save_weights(tmp_path / "task.weights.h5")
    opened = keras.saving.load_model(tmp_path / "task.keras")
    assert type(opened) is Task
    assert opened.temperature == 3.0
    other = task()
    other.load_weights(tmp_path / "task.weights.h5")
    # A pickle holds the same as the file.
    unpickled = pickle.loads(pickle.dumps(split))
    assert type(unpickled) is Task
    for model in (opened, other, unpickled):
        for one, its in zip(plain.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, its)
    with mesh_strategy({"pipe": 2}).scope():
        again = type(split).from_config(split.get_config())
        assert keras_ext.PipelineModel(plain, partition="uniform", name="named").name == "named"
    assert str(again.partition) == str(split.partition)
    # A class is made once, and models of it are not made into another.
    assert again.__class__ is split.__class__


def names(model: Any) -> list[str]:
    return [node.name for node in nodes_of(model)]


# Keras says that a nested model destroys its input's mask.
@pytest.mark.filterwarnings("ignore:Layer 'masked'")
def test_nested_models_are_replaced_by_their_nodes_where_the_numbers_are_the_same() -> None:
    x = keras.Input((5, 4))
    twice = keras.Sequential([keras.Input((5, 4)), L.Dense(4, name="inside")], name="twice")
    masked = keras.Sequential([keras.Input((5, 4)), L.Dense(4)], name="masked")
    halved = keras.Sequential([keras.Input((5, 4), dtype="float16"), L.Dense(4)], name="halved")
    named = {name: keras.Input((5, 4), name=name) for name in ("b", "a")}
    by_name = keras.Model(named, L.Subtract(name="minus")([named["a"], named["b"]]), name="by_name")
    model = keras.Model(
        x,
        by_name({"a": halved(twice(twice(x))), "b": masked(L.Masking(name="mask")(x))}),
    )
    # Called twice; a mask, which the model hands on; a conversion of the input.
    expected = {"halved", "mask", "masked", "minus", "twice"}
    # A Masking computes in four operations.
    assert {name for name in names(model) if name not in ("not_equal", "any", "cast", "multiply")} == expected
    assert names(model).count("twice") == 2
    [minus] = [node for node in nodes_of(model) if node.name == "minus"]
    assert minus.outputs == tuple(model.outputs)
    assert [each._keras_history.operation.name for each in minus.args[0]] == ["halved", "masked"]
    # Inputs of another rank, a call of one's own, and a recomputation of the whole.
    flat = keras.Input((5,))

    class Own(keras.Model):
        def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
            return super().call(inputs, training=training, mask=mask) + 1.0

    one = keras.Input((5, 1))
    own = Own(one, L.Dense(1)(one), name="own")
    with keras.RematScope("full"):
        whole = keras.Sequential([keras.Input((5, 1)), L.Dense(1)], name="whole")
    raised = keras.Sequential([keras.Input((5, 1)), L.Dense(1)], name="raised")
    assert names(keras.Model(flat, whole(own(raised(flat))))) == ["raised", "own", "whole"]


def test_training_of_a_nested_call_is_that_of_its_layers() -> None:
    x = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dropout(0.5, seed=1)], name="inner")
    model = keras.Model(x, L.Dense(2, name="out")(inner(x, training=True)))
    with mesh_strategy({"pipe": 2}).scope():
        split = keras_ext.PipelineModel(model, partition=["out"])
    rows = np.ones((6, 4), "float32")
    # Outside of training, the dropout is on, as it was asked to be; both models draw the same numbers.
    np.testing.assert_allclose(split(rows), model(rows), rtol=0, atol=1e-6)
    assert np.ptp(np.asarray(model(rows)), axis=0).max() > 0
