"""`parallelize` of models with layers of users' classes, which hold plain layers."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, labels

L = keras.layers
UNITS, LENGTH = 8, 5


@keras.saving.register_keras_serializable("tests")
class Block(keras.Layer):
    """A layer in the style of libraries: makes and builds layers in `build`; uses Keras' ops in `call`."""

    def __init__(self, heads: int, hidden: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.hidden = hidden

    def build(self, shape: Any) -> None:
        self._attention = L.MultiHeadAttention(self.heads, shape[-1] // self.heads, dtype=self.dtype_policy)
        self._attention.build(shape, shape)
        self._norms = [L.LayerNormalization(dtype=self.dtype_policy) for _ in range(2)]
        for norm in self._norms:
            norm.build(shape)
        self._up = L.Dense(self.hidden, activation="relu", dtype=self.dtype_policy)
        self._up.build(shape)
        self._down = L.Dense(shape[-1], dtype=self.dtype_policy)
        self._down.build((*shape[:-1], self.hidden))
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.built = True

    def call(self, x: Any) -> Any:
        y = self._norms[0](x)
        x = x + self._attention(y, y, use_causal_mask=True)
        return x + self._down(self._up(self._norms[1](x))) * self.scale

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self.heads, "hidden": self.hidden}


@keras.saving.register_keras_serializable("tests")
class Tutorial(keras.Layer):
    """A layer in the style of tutorials: makes layers and models in `__init__`, also in lists and under two names."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.feed_forward = keras.Sequential([L.Dense(2 * units, activation="relu"), L.Dense(units)])
        self.steps = []
        for i in range(2):
            step = L.Dense(units, activation="tanh")
            self.steps.append(step)
            setattr(self, f"step_{i}", step)
        self.inner = Block(2, 12)
        self.named = {"a name": L.Dense(units)}
        self.drop = L.Dropout(0.0)

    def call(self, x: Any, training: bool | None = None) -> Any:
        for step in self.steps:
            x = step(x)
        x = self.named["a name"](self.step_1(x))
        return self.drop(self.feed_forward(self.inner(x)), training=training)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(1)


def classifier(layer: Any) -> keras.Model:
    x = keras.Input((LENGTH, UNITS))
    y = L.GlobalAveragePooling1D()(layer(x))
    return keras.Model(x, L.Dense(3, activation="softmax")(y))


def compiled(make_layer: Any, split: bool) -> Any:
    model = classifier(make_layer())
    if split:
        model = keras_ext.parallelize(model)
    # The gradient of the key bias is zero up to rounding.
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def sequences() -> Any:
    return np.random.default_rng(1).normal(size=(NUM_ROWS, LENGTH, UNITS)).astype("float32")


CUSTOM = {"library": functools.partial(Block, 2, 12), "tutorial": functools.partial(Tutorial, UNITS)}


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        ("library", {"data": 2, "tensor": 2}),
        ("tutorial", {"tensor": 2}),
        pytest.param("tutorial", {"data": 2, "tensor": 2}, marks=pytest.mark.parity_all),
    ],
)
def test_parity(layer: str, axes: dict[str, int]) -> None:
    make = functools.partial(compiled, CUSTOM[layer])
    assert_parity(make, sequences(), labels(), axes, predict=True)


def test_the_default_plan_finds_pairs_inside() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        plan = keras_ext.default_plan(classifier(Tutorial(UNITS, name="tutorial")))
    kinds = {path.partition("/")[2]: (choice.kind, choice.pieces) for path, choice in plan.items() if choice.kind}
    [up, down] = [path for path in kinds if path.startswith("feed_forward/")]
    assert kinds == {
        up: ("column", True),
        down: ("row", False),
        # The second layer is called twice.
        "steps/0": ("column", False),
        "steps/1": ("column", False),
        "inner/_attention": ("heads", False),
        "inner/_up": ("column", True),
        "inner/_down": ("row", False),
        "named/a name": ("column", False),
        # Three classes are not divisible by two shards.
        "": ("row", False),
    }


def test_each_device_holds_its_part_and_files_are_those_of_the_plain_model(tmp_path: pathlib.Path) -> None:
    plain = classifier(Tutorial(UNITS, name="tutorial"))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    [layer] = [layer for layer in split.layers if isinstance(layer, Tutorial)]
    assert type(layer) is Tutorial
    assert type(layer.inner) is Block
    assert layer.steps[1] is layer.step_1
    assert isinstance(layer.inner._up, keras_ext.ColumnParallelDense)
    assert isinstance(layer.named["a name"], keras_ext.ColumnParallelDense)
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    split.save_weights(tmp_path / "model.weights.h5")
    opened = classifier(Tutorial(UNITS, name="tutorial"))
    opened.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(opened(sequences()), split(sequences()), rtol=0, atol=1e-6)


def test_the_old_model_is_left_as_it_is() -> None:
    plain = classifier(Tutorial(UNITS))
    [layer] = [layer for layer in plain.layers if isinstance(layer, Tutorial)]
    before = [len(inner._inbound_nodes) for inner in layer._flatten_layers()]
    with mesh_strategy({"tensor": 2}).scope():
        keras_ext.parallelize(plain)
    assert [len(inner._inbound_nodes) for inner in layer._flatten_layers()] == before
    assert type(layer.inner._up) is L.Dense


@keras.saving.register_keras_serializable("tests")
class Foreign(keras.Layer):
    """Computes with TensorFlow, so that the flow of tensors cannot be traced by Keras."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.up, self.down = L.Dense(12), L.Dense(UNITS)

    def call(self, x: Any) -> Any:
        return self.down(tf.nn.relu(self.up(x)))


def test_without_a_graph_each_layer_is_split_for_itself() -> None:
    plain = classifier(Foreign(name="foreign"))
    with mesh_strategy({"tensor": 2}).scope():
        plan, split = keras_ext.default_plan(plain), keras_ext.parallelize(plain)
    assert [plan[f"foreign/{name}"].kind for name in ("up", "down")] == ["column", "column"]
    np.testing.assert_allclose(split(sequences()), plain(sequences()), rtol=0, atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class BuiltAtOnce(Block):
    """Is built in its constructor."""

    def __init__(self, *args: Any, built_for: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if built_for:
            self.build(built_for)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "built_for": [None, LENGTH, UNITS]}


def test_layers_that_are_built_when_the_one_around_them_is_made() -> None:
    plain = classifier(BuiltAtOnce(2, 12, name="block"))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    [layer] = [layer for layer in split.layers if isinstance(layer, BuiltAtOnce)]
    assert isinstance(layer._attention, keras_ext.ParallelMultiHeadAttention)
    assert isinstance(layer._up, keras_ext.ColumnParallelDense)
    np.testing.assert_allclose(split(sequences()), plain(sequences()), rtol=0, atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class Hidden(keras.Layer):
    """Appends layers to a list while it is built."""

    def build(self, shape: Any) -> None:
        self.steps: list[Any] = []
        self.steps.append(L.Dense(shape[-1]))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.steps[0](x)


def test_layers_in_a_list_that_grows_in_build() -> None:
    plain = classifier(Hidden(name="hidden"))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    [layer] = [layer for layer in split.layers if isinstance(layer, Hidden)]
    assert isinstance(layer.steps[0], keras_ext.ColumnParallelDense)
    np.testing.assert_allclose(split(sequences()), plain(sequences()), rtol=0, atol=1e-6)
