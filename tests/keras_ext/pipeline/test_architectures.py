"""Models in common use: ResNet50 and a small GPT train in stages as they do in one piece."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from strategies import layer_api
from tests.keras_ext.pipeline.test_model import accumulate
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.keras_ext.tensor.test_files import ALONE
from tests.keras_ext.tensor.test_parallelize import IDS, gpt, resnet
from tests.processes import python
from tests.strategies.parity.harness import TOLERANCE

L = keras.layers

#: Each lies between a residual block's first and last convolution, so that the block's shortcut crosses the cut, too.
INSIDE_OF_BLOCKS = ["conv3_block2_2_conv", "conv4_block3_3_conv", "conv5_block1_2_conv"]
IMAGES = np.random.default_rng(1).standard_normal((8, 32, 32, 3))
CLASSES = np.arange(8)


@pytest.fixture
def _float64() -> Iterator[None]:
    """Runs a test in float64: normalizations over few rows magnify rounding; the small rest proves the arithmetic."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before)


def compiled(model: Any) -> Any:
    model.compile(keras.optimizers.SGD(1e-2, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def resnets(axes: Mapping[str, int], frozen: bool, **arguments: Any) -> tuple[Any, Any]:
    """Returns ResNet50, plain and in stages; `frozen` fixes its batch statistics."""
    keras.utils.set_random_seed(1)
    plain = resnet()
    for layer in plain.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.trainable = not frozen
    with mesh_strategy(axes).scope():
        split = compiled(keras_ext.PipelineModel(plain, **arguments))
    return compiled(plain), split


def assert_same_weights(model: Any, plain: Any) -> None:
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def assert_opens_alone(model: Any, x: Any, folder: pathlib.Path) -> None:
    """Asserts that the model's file opens without this package, with Keras' own layers, and predicts alike."""
    model.save(folder / "split.keras")
    np.save(folder / "x.npy", x)
    arguments = [str(folder / name) for name in ("split.keras", "x.npy", "found.npz")]
    done = subprocess.run(python("-c", ALONE, *arguments), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "found.npz")
    np.testing.assert_allclose(found["predicted"], model.predict(x, verbose=0), rtol=TOLERANCE, atol=TOLERANCE)
    assert all(name.startswith("keras.src.") for name in found["classes"])
    assert found["slots"] == len(layer_api.joined(model.optimizer.variables))


@pytest.mark.usefixtures("_float64")
def test_resnet50_with_frozen_statistics_equals_whole_batches() -> None:
    plain, split = resnets({"pipe": 4}, frozen=True, num_microbatches=3, partition=INSIDE_OF_BLOCKS)
    assert [len(stage.inputs) for stage in split._stages] == [1, 2, 2, 2]
    logs = [
        model.fit(IMAGES, CLASSES, batch_size=8, epochs=2, shuffle=False, verbose=0).history for model in (split, plain)
    ]
    assert_same_weights(split, plain)
    for name, values in logs[1].items():
        np.testing.assert_allclose(logs[0][name], values, rtol=TOLERANCE, atol=TOLERANCE)


# By hand, too, its layers normalize by the rows of one micro-batch.
@pytest.mark.filterwarnings("ignore:.*'conv2_block1_0_bn' and 49 more. BatchNormalization.synchronized=True")
@pytest.mark.usefixtures("_float64")
def test_resnet50_equals_the_micro_batches_accumulated(tmp_path: pathlib.Path) -> None:
    plain, split = resnets({"pipe": 4}, frozen=False, num_microbatches=2, partition="parameters")
    accumulate(plain, IMAGES, CLASSES, 2, steps=2)
    split.fit(IMAGES, CLASSES, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert np.any(split.get_layer("conv5_block3_3_bn").moving_mean != 0)
    assert_same_weights(split, plain)
    assert_opens_alone(split, IMAGES, tmp_path)


def language_model(split: bool, num_blocks: int = 4) -> Any:
    """Returns a language model, split over "tensor" where the mesh has that axis."""
    model = gpt(num_blocks)
    if split:
        model = keras_ext.PipelineModel(keras_ext.parallelize(model), num_microbatches=2, partition="parameters")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss, metrics=["accuracy"])
    return model


GPT_MESHES = {
    "data=2,pipe=2,tensor=2": {"data": 2, "pipe": 2, "tensor": 2},
    "pipe=4,tensor=2": {"pipe": 4, "tensor": 2},
    "data=4,pipe=1,tensor=2": {"data": 4, "pipe": 1, "tensor": 2},
    "pipe=4": {"pipe": 4},
}


# In float64, like the tensor-parallel test: Adam divides rounding errors by rounding errors where a gradient is zero,
# like that of an attention's key bias.
@pytest.mark.parametrize("axes", GPT_MESHES.values(), ids=GPT_MESHES)
def test_a_language_model_trains_alike(axes: Mapping[str, int]) -> None:
    assert_parity(language_model, IDS, np.roll(IDS, -1, 1), axes, dtype_policy="float64", predict=True)


# The example trains such a model on all axes together.
@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize(
    "axes",
    [
        pytest.param({"pipe": 2, "tensor": 2}, id="pipe=2,tensor=2"),
        pytest.param({"data": 2, "pipe": 2, "tensor": 2}, id="data=2,pipe=2,tensor=2", marks=pytest.mark.parity_all),
    ],
)
def test_a_language_model_opens_where_this_package_is_not(axes: Mapping[str, int], tmp_path: pathlib.Path) -> None:
    models = []
    for split in (False, True):
        keras.utils.set_random_seed(3)
        with mesh_strategy(axes).scope() if split else contextlib.nullcontext():
            models.append(language_model(split, num_blocks=1))
        models[-1].fit(IDS, np.roll(IDS, -1, 1), batch_size=14, shuffle=False, verbose=0)
    plain, staged = models
    assert_same_weights(staged, plain)
    assert_opens_alone(staged, IDS, tmp_path)
