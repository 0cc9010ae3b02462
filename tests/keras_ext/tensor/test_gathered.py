"""Sharded weights in layers of any class: the numbers of one device, whole files, and copies in stages."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.tensor.gathered import GatheredWeights, output_axis
from strategies import layer_api
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, features, labels
from tests.strategies.processes.tensor_models import Bank, gathered, squaring

L = keras.layers


def sequences() -> np.ndarray:
    return features(NUM_ROWS, 6, 4, seed=1)


LATER = [pytest.param(axes, id=name, marks=pytest.mark.parity_all) for name, axes in MESHES.items()]


@pytest.mark.parametrize("axes", [pytest.param({"data": 2, "tensor": 2}, id="default"), *LATER])
def test_parity(axes: Mapping[str, int]) -> None:
    assert_parity(gathered, sequences(), labels(), axes, predict=True)


def in_stages(split: bool) -> Any:
    model = gathered(split)
    if split:
        model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(squaring(), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("axes", [{"pipe": 2, "tensor": 2}], ids=str)
def test_copies_in_stages_are_in_shards_too(axes: Mapping[str, int]) -> None:
    # The layer's own penalty does not depend on rows: its mean over micro-batches is that of a whole batch.
    assert_parity(in_stages, sequences(), labels(), axes)


def test_what_lies_where_and_files(tmp_path: pathlib.Path) -> None:
    keras.utils.set_random_seed(1)
    plain = gathered(False)
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    [bank] = [layer for layer in split.layers if isinstance(layer, Bank)]
    assert isinstance(bank, GatheredWeights)
    assert isinstance(bank.inside, keras_ext.ColumnParallelDense)
    shapes = {name: [tuple(shard.shape) for shard in getattr(bank, name).shards] for name in ("bank", "back")}
    assert shapes == {"bank": [(3, 3, 5)] * 2, "back": [(5, 3)] * 2}
    # A non-trainable weight, which the layer may write.
    assert bank.fixed.shape == (6, 6)
    tables = {name: [tuple(shard.shape) for shard in getattr(bank, name).shards] for name in ("by_rows", "by_columns")}
    assert tables == {"by_rows": [(5, 6)] * 2, "by_columns": [(2, 3)] * 2}
    assert [weight.trainable for weight in (bank.bank, bank.fixed)] == [True, False]
    [heads] = [layer for layer in split.layers if layer.name == "to_heads"]
    assert [tuple(shard.shape) for shard in heads._kernel.shards] == [(6, 3, 3), (6, 3, 2)]
    assert next(weight.path for weight in layer_api.joined(split.weights)).endswith("conv/kernel")
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    split.save(tmp_path / "model.keras")
    opened = keras.saving.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in opened.layers] == [type(layer) for layer in plain.layers]
    np.testing.assert_allclose(opened(sequences()), plain(sequences()), rtol=0, atol=1e-6)
    with mesh_strategy({"tensor": 2}).scope():
        again = keras_ext.parallelize(opened)
    again.load_weights(tmp_path / "model.keras")
    np.testing.assert_allclose(again(sequences()), plain(sequences()), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="cannot be quantized"):
        bank.quantize("int8")


def test_half_precision_casts_what_is_put_together() -> None:
    keras.utils.set_random_seed(1)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        plain = gathered(False)
        with mesh_strategy({"tensor": 2}).scope():
            split = keras_ext.parallelize(plain)
        mine, theirs = (np.asarray(keras.ops.cast(model(sequences()), "float32")) for model in (split, plain))
    finally:
        keras.config.set_dtype_policy(before)
    # bfloat16 has eight bits of mantissa.
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-2)


def test_axes_of_outputs() -> None:
    assert [output_axis("abc,cde->abde", dim) for dim in range(3)] == [None, -2, -1]
    assert [output_axis("...x, xy -> ...y", dim) for dim in range(2)] == [None, -1]


class Averaging(keras.layers.Layer):
    """Keeps a moving average of its inputs, large enough to be sharded if it were trainable."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 6), name="kernel")
        self.average = self.add_weight(shape=(4, 6), name="average", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        y = keras.ops.matmul(x, self.kernel)
        if training:
            self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(y, axis=(0, 1)))
        return y + keras.ops.sum(self.average, axis=0)


def averaging(split: bool) -> Any:
    model = keras.Sequential([keras.Input((6, 4)), Averaging(), L.Flatten(), L.Dense(3)])
    model.compile(squaring(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return keras_ext.parallelize(model) if split else model


def test_a_layer_that_writes_its_state() -> None:
    assert_parity(averaging, sequences(), labels(), {"data": 2, "tensor": 2})


class ReadsValue(keras.layers.Layer):
    """Reads a weight's value, as Keras 3.16's TernaryDense does."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")

    def call(self, inputs: Any) -> Any:
        return keras.ops.matmul(inputs, self.kernel.value)


def test_a_layer_that_reads_the_value_of_a_variable_is_refused_or_left_whole() -> None:
    plain = keras.Sequential([keras.Input((4,)), ReadsValue(name="reads")])
    x = features(NUM_ROWS, 4, seed=1)
    message = r"ReadsValue 'reads' reads 'value' of a weight.*plan=\{'reads': None\}"
    with mesh_strategy({"tensor": 2}).scope():
        with pytest.raises(AttributeError, match=message):
            keras_ext.parallelize(plain)
        whole = keras_ext.parallelize(plain, {"reads": None})
    np.testing.assert_allclose(whole.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-6, atol=1e-6)
