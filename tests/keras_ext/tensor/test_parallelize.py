"""`parallelize`: the same model with split layers trains to the same numbers and is the same in files."""

from __future__ import annotations

import functools
import logging
import pathlib
import re
import subprocess
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.keras_ext.tensor.test_files import ALONE
from tests.logs import own_records
from tests.processes import python
from tests.strategies.parity.harness import NUM_ROWS, TOLERANCE, labels, vectors

L = keras.layers

VOCABULARY, LENGTH = 50, 12
IDS = np.random.default_rng(0).integers(VOCABULARY, size=(NUM_ROWS, LENGTH))


def gpt(num_blocks: int = 4, width: int = 16, heads: int = 4) -> keras.Model:
    ids = keras.Input((LENGTH,), dtype="int32")
    positions = keras.ops.zeros_like(ids) + keras.ops.arange(LENGTH)
    h = L.Embedding(VOCABULARY, width, name="tokens")(ids) + L.Embedding(LENGTH, width, name="positions")(positions)
    for i in range(num_blocks):
        n = L.LayerNormalization()(h)
        h = h + L.MultiHeadAttention(heads, width // heads, name=f"attention_{i}")(n, n, use_causal_mask=True)
        n = L.LayerNormalization()(h)
        up = L.Dense(4 * width, activation="gelu", name=f"up_{i}")(n)
        h = h + L.Dense(width, name=f"down_{i}")(up)
    return keras.Model(ids, L.Dense(VOCABULARY, name="logits")(L.LayerNormalization()(h)))


def resnet() -> keras.Model:
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    for layer in model.layers:
        if isinstance(layer, L.BatchNormalization):
            # Replicas use the statistics of all rows, as one device does.
            layer.synchronized = True
    return model


def language_model(split: bool, **kwargs: Any) -> Any:
    model = keras_ext.parallelize(gpt(), **kwargs) if split else gpt()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss, metrics=["accuracy"])
    return model


# In float64: Adam divides rounding errors by rounding errors where a gradient is zero, like that of an attention's key
# bias, and 50 normalizations over few rows magnify them. The small rest proves the arithmetic.
@pytest.mark.parametrize("sequence_parallel", [True, False], ids="sequence_parallel={}".format)
def test_a_language_model_trains_alike(sequence_parallel: bool) -> None:
    make = functools.partial(language_model, sequence_parallel=sequence_parallel)
    axes = {"data": 2, "tensor": 2}
    assert_parity(make, IDS, np.roll(IDS, -1, 1), axes, dtype_policy="float64", tolerance=TOLERANCE)


def test_between_split_layers_each_shard_has_a_part_of_the_sequence() -> None:
    # In float64, as above: normalization magnifies the rounding of embeddings as small as Keras' own.
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        keras.utils.set_random_seed(1)
        plain = gpt(num_blocks=2)
        with mesh_strategy({"tensor": 2}).scope():
            split = keras_ext.parallelize(plain, sequence_parallel=True)
    finally:
        keras.config.set_dtype_policy(before)
    [whole, *shortcuts] = [operation for operation in split.operations if type(operation).__name__ == "Add"][1:]
    normalizations = [layer for layer in split.layers if isinstance(layer, L.LayerNormalization)]
    # The first normalization comes before the first split tensor.
    between = [*shortcuts, *normalizations[1:], split.get_layer("attention_1"), split.get_layer("down_1")]
    probe = keras.Model(split.input, [operation.output for operation in (whole, *between)])
    first, *others = probe(IDS[:3])
    assert tf.is_tensor(first)
    for found, operation in zip(others, between, strict=True):
        assert isinstance(found, SplitTensor), operation
        assert [piece.shape for piece in found.pieces] == [(3, LENGTH // 2, 16)] * 2
        assert [piece.device[-5:] for piece in found.pieces] == ["CPU:0", "CPU:1"]
    np.testing.assert_allclose(split(IDS[:3]), plain(IDS[:3]), rtol=0, atol=1e-6)


def test_the_plan_names_what_lies_in_pieces_of_the_sequence() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        table = str(keras_ext.default_plan(gpt(num_blocks=1), sequence_parallel=True))
    [row] = [line.split() for line in table.splitlines() if line.startswith("attention_0")]
    assert row[1:4] == ["MultiHeadAttention", "heads", "sequence"]


def test_refuses_to_give_a_model_inside_some_inputs_in_pieces() -> None:
    x, y = keras.Input((4, 8)), keras.Input((4, 8))
    inner = keras.Model([x, y], L.Dense(8)(x + y), name="inner one")
    outer = keras.Model([x, y], inner([L.MultiHeadAttention(2, 4)(x, x), y]))
    with mesh_strategy({"tensor": 2}).scope():
        with pytest.raises(ValueError, match="model 'inner one' inside of the model, with 2 inputs"):
            keras_ext.parallelize(outer, sequence_parallel=True)
        split = keras_ext.parallelize(outer)
    arrays = [np.ones((2, 4, 8), "float32")] * 2
    np.testing.assert_allclose(split(arrays), outer(arrays), rtol=0, atol=1e-6)


def test_a_layer_that_is_used_twice_stays_one() -> None:
    x = keras.Input((4, 8))
    shared = L.Dense(8, activation="relu", name="shared")
    plain = keras.Model(x, shared(L.Add()([shared(x), x])))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    assert len(split.weights) == 4
    values = np.ones((2, 4, 8), "float32")
    np.testing.assert_allclose(split(values), plain(values), rtol=0, atol=1e-6)


def test_resnet50_trains_alike() -> None:
    x = np.random.default_rng(1).standard_normal((8, 32, 32, 3))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        keras.utils.set_random_seed(1)
        plain = resnet()
        plain.compile(keras.optimizers.SGD(1e-2, momentum=0.9), "sparse_categorical_crossentropy")
        strategy = mesh_strategy({"data": 2, "tensor": 2})
        with strategy.scope():
            split = keras_ext.parallelize(plain)
    finally:
        keras.config.set_dtype_policy(before)
    for model in (plain, split):
        model.fit(x, np.arange(8), batch_size=8, epochs=2, shuffle=False, verbose=0)
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def mlp() -> Any:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="relu", name="up"),
            L.Dropout(0.5, seed=1, name="drop"),
            L.Dense(4, name="down"),
            L.Dense(3, activation="softmax", name="out"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(model: Any) -> Any:
    return model.fit(vectors(), labels(), batch_size=14, epochs=2, shuffle=False, verbose=0).history


def test_a_compiled_model_goes_on_where_it_was() -> None:
    keras.utils.set_random_seed(2)
    plain = mlp()
    plain.layers[1].rate = 0.0
    fit(plain)
    with mesh_strategy({"tensor": 4}).scope():
        split = keras_ext.parallelize(plain, {"up": "column", "down": "row"})
    assert [type(layer).__qualname__ for layer in split.layers] == [
        "ColumnParallelDense",
        "ShardwiseDropout",
        "RowParallelDense",
        "Dense",
    ]
    assert [layer.name for layer in split.layers] == [layer.name for layer in plain.layers]
    assert split.optimizer is not plain.optimizer
    logs, expected = fit(split), fit(plain)
    for name in expected:
        np.testing.assert_allclose(logs[name], expected[name], atol=TOLERANCE)
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)


def test_opens_where_this_package_is_not(tmp_path: pathlib.Path) -> None:
    keras.utils.set_random_seed(3)
    with mesh_strategy({"data": 2, "tensor": 2}).scope():
        model = keras_ext.parallelize(gpt(num_blocks=1), sequence_parallel=True)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(IDS, np.roll(IDS, -1, 1), verbose=0)
    model.save(tmp_path / "split.keras")
    np.save(tmp_path / "x.npy", IDS)
    arguments = [str(tmp_path / name) for name in ("split.keras", "x.npy", "found.npz")]
    done = subprocess.run(python("-c", ALONE, *arguments), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_allclose(found["predicted"], model.predict(IDS, verbose=0), atol=1e-5)
    assert all(name.startswith("keras.src.") for name in found["classes"])


def test_without_the_axis_nothing_is_split(caplog: pytest.LogCaptureFixture) -> None:
    keras.utils.set_random_seed(4)
    plain = mlp()
    with caplog.at_level(logging.WARNING), strategies.MirroredStrategy(["CPU:0"]).scope():
        keras_ext.parallelize(mlp())
    assert "no axis 'tensor'" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        same = keras_ext.parallelize(plain)
        keras_ext.PipelineModel(plain, name="staged")
    assert "parallelize was called outside of strategy.scope(): nothing of 'sequential" in caplog.text
    assert "outside of strategy.scope(): 'staged' stays on one device" in caplog.text
    np.testing.assert_array_equal(same.predict(vectors(), verbose=0), plain.predict(vectors(), verbose=0))


@pytest.mark.parametrize(
    ("mesh", "make", "idle"),
    [
        ({"tensor": 2}, lambda model: model, "'tensor': 2, but no .*: 1 of the 2 devices .* keras_ext.parallelize"),
        ({"data": 2, "pipe": 2}, lambda model: model, "'pipe': 2, but no .*: 1 of the 2 .* keras_ext.PipelineModel"),
        ({"pipe": 2, "tensor": 2}, keras_ext.PipelineModel, "'tensor': 2, but no .*: 2 of the 4 devices"),
        ({"pipe": 2, "tensor": 2}, keras_ext.parallelize, "'pipe': 2, but no .*: 2 of the 4 devices"),
        ({"tensor": 2}, keras_ext.parallelize, ""),
        ({"pipe": 2}, keras_ext.PipelineModel, ""),
        ({"data": 2}, lambda model: model, ""),
    ],
)
def test_devices_that_compute_nothing_are_named_once(
    mesh: dict[str, int], make: Callable[[Any], Any], idle: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mesh_strategy(mesh).scope():
        model = make(keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2)]))
        model.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model.train_on_batch(np.ones((4, 4)), np.ones((4, 2)))
    found = [record.getMessage() for record in own_records(caplog)]
    assert len(found) == (1 if idle else 0)
    assert not idle or re.search(idle, found[0]), found


def test_the_default_plan_prints() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        assert str(keras_ext.default_plan(mlp())).startswith("2 shards\nlayer  class")


def test_forward_and_backward_ops_are_where_the_shards_are() -> None:
    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        split = keras_ext.parallelize(gpt(num_blocks=1), {"up": "column", "down": "row", "attention": "heads"})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(ids, split(ids, training=True))
        return tape.gradient(value, [v.value for v in split.trainable_variables])

    graph = tf.function(lambda ids: strategy.run(gradients, args=(ids,))).get_concrete_function(tf.constant(IDS)).graph
    kinds = ("MatMul", "BatchMatMulV2", "Einsum")
    products = [op.device[-5:] for op in graph.get_operations() if op.type in kinds]
    # The first device computes the logits, with two gradients; both devices compute equal parts of the rest.
    assert products.count("CPU:0") - 3 == products.count("CPU:1") > 10
    assert len(products) == products.count("CPU:0") + products.count("CPU:1")
