"""`from_preset` in one process: weights of plain KerasHub, errors that name every tensor, memory.

Two processes: ``tests/strategies/processes/spanning_presets.py``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

import keras_hub as hub

import keras_ext
import strategies
from strategies import layer_api
from tests.keras_ext.presets import folders

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MESHES: Mapping[str, tuple[dict[str, int], dict[str, Any]]] = {
    "data": ({"data": 2}, {}),
    "sharded": ({"data": 2}, {"shard": "weights"}),
    "tensor": ({"tensor": 2}, {}),
    "data, tensor, sharded": ({"data": 2, "tensor": 2}, {"shard": "weights"}),
}


def on(name: str) -> Any:
    mesh, options = MESHES[name]
    devices = [f"CPU:{index}" for index in range(int(np.prod(list(mesh.values()))))]
    return strategies.MirroredStrategy(devices, mesh=mesh, **options)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset in KerasHub's format, of a task with a tokenizer."""
    folder = tmp_path_factory.mktemp("presets")
    vocabulary, merges = folders.tokenizer()
    tokenizer = hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=merges)
    preprocessor = hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    hub.models.GPT2CausalLM(folders.gpt2(dropout=0.1), preprocessor).save_to_preset(str(folder / "own"))
    return folder / "own"


def assert_same_weights(one: Any, other: Any) -> None:
    for first, second in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("mesh", MESHES)
def test_weights_are_those_of_the_plain_model(own: Path, mesh: str) -> None:
    plain = hub.models.CausalLM.from_preset(str(own))
    with on(mesh).scope():
        model = keras_ext.from_preset(hub.models.CausalLM, str(own))
    assert_same_weights(plain, model)
    assert isinstance(model, hub.models.GPT2CausalLM)
    assert model.preprocessor.tokenizer("shards of strategies").tolist()
    assert not any(map(layer_api.is_left_in_file, model.variables))


def test_what_follows_starts_as_after_a_plain_load(own: Path) -> None:
    """Names and initial values of layers that are made later, and of a head that no file has."""

    def after(load: Callable[[], Any]) -> list[Any]:
        keras.utils.set_random_seed(5)
        model = load()
        layer = keras.layers.Dense(4)
        layer.build((4,))
        return [model.name, layer.name, layer.get_weights(), model.get_weights()]

    keras.utils.clear_session()
    plain = after(lambda: hub.models.CausalLM.from_preset(str(own), preprocessor=None))
    for mesh in ("data", "tensor"):
        keras.utils.clear_session()
        with on(mesh).scope():
            found = after(lambda: keras_ext.from_preset(hub.models.CausalLM, str(own), preprocessor=None))
        assert found[:2] == plain[:2]
        for one, other in zip(found[2] + found[3], plain[2] + plain[3], strict=True):
            np.testing.assert_array_equal(one, other)


def test_several_files_and_dtypes(tmp_path: Path) -> None:
    backbone = folders.llama3()
    backbone.save_to_preset(str(tmp_path / "files"), max_shard_size=6e-5)
    assert len(list((tmp_path / "files").glob("*.weights.h5"))) > 1
    plain = hub.models.Backbone.from_preset(str(tmp_path / "files"), dtype="bfloat16")
    plain.save_to_preset(str(tmp_path / "bfloat16"))
    with on("tensor").scope():
        model = keras_ext.from_preset(hub.models.Backbone, str(tmp_path / "files"), dtype="bfloat16")
        read = keras_ext.from_preset(hub.models.Backbone, str(tmp_path / "bfloat16"))
    assert {weight.dtype for weight in model.weights} == {"bfloat16"}
    assert_same_weights(plain, model)
    assert_same_weights(hub.models.Backbone.from_preset(str(tmp_path / "bfloat16")), read)


def test_quantized(tmp_path: Path) -> None:
    plain = hub.models.GPT2CausalLM(folders.gpt2(), preprocessor=None)
    plain.save_to_preset(str(tmp_path / "float32"))
    plain.backbone.quantize("int8")
    plain.save_to_preset(str(tmp_path / "int8"))

    def quantized(task: Any) -> Any:
        task.backbone.quantize("int8")
        return keras_ext.parallelize(task)

    with on("tensor").scope():
        loaded = keras_ext.from_preset(hub.models.CausalLM, tmp_path / "int8")
        made = keras_ext.from_preset(hub.models.CausalLM, tmp_path / "float32", quantized)
    assert "int8" in {weight.dtype for weight in loaded.weights}
    assert_same_weights(plain, loaded)
    assert_same_weights(plain, made)


def test_a_head_that_no_file_has(tmp_path: Path) -> None:
    sizes = {"num_layers": 1, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64, "max_sequence_length": 8}
    hub.models.BertBackbone(vocabulary_size=64, **sizes).save_to_preset(str(tmp_path / "backbone"))
    settings: dict[str, Any] = {"num_classes": 3, "preprocessor": None}
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    plain = hub.models.TextClassifier.from_preset(str(tmp_path / "backbone"), **settings)
    plain.save_to_preset(str(tmp_path / "task"))
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with on("tensor").scope():
        made = keras_ext.from_preset(hub.models.TextClassifier, tmp_path / "backbone", **settings)
        read = keras_ext.from_preset(hub.models.TextClassifier, tmp_path / "task", preprocessor=None)
    assert_same_weights(plain, made)
    assert_same_weights(plain, read)


def test_a_function_splits_the_model(own: Path) -> None:
    def split(task: Any) -> Any:
        assert all(layer_api.is_left_in_file(weight) for weight in task.weights)
        task.backbone.enable_lora(2)
        return keras_ext.parallelize(task)

    with on("tensor").scope():
        model = keras_ext.from_preset(hub.models.CausalLM, str(own), split)
        adapters = [path for path in (weight.path for weight in model.trainable_variables) if "lora" in path]
        assert len(adapters) == 2 * 2 * 3
        assert not any("kernel" in weight.path for weight in model.trainable_variables if "lora" not in weight.path)
        with pytest.raises(ValueError, match="split copy"):
            keras_ext.from_preset(hub.models.CausalLM, str(own), lambda task: task)
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"pipe": 2})
    with strategy.scope(), pytest.raises(ValueError, match="split=lambda"):
        keras_ext.from_preset(hub.models.CausalLM, str(own))


@pytest.mark.parametrize("mesh", ["data", "tensor"])
def test_names_all_that_differs_in_kerashubs_format(tmp_path: Path, mesh: str) -> None:
    h5py = pytest.importorskip("h5py")
    folders.gpt2().save_to_preset(str(tmp_path / "preset"))
    with h5py.File(tmp_path / "preset" / "model.weights.h5", "r+") as file:
        first = "layers/transformer_decoder/_feedforward_intermediate_dense/vars"
        del file[f"{first}/1"]
        second = "layers/transformer_decoder_1/_feedforward_output_dense/vars"
        del file[f"{second}/1"]
        file[f"{second}/1"] = np.zeros([5], "float32")
        file["layers/other/vars/0"] = np.zeros([2, 3], "float32")
    with on(mesh).scope(), pytest.raises(ValueError, match="do not fit the model") as raised:
        keras_ext.from_preset(hub.models.Backbone, str(tmp_path / "preset"))
    lines = str(raised.value).splitlines()
    assert lines[1:] == [
        "extra: layers/other/vars/0, shape (2, 3)",
        "misshapen: transformer_layer_1/feedforward_output_dense/bias, shape (32,), in the file (5,)",
        "missing: transformer_layer_0/feedforward_intermediate_dense/bias, shape (128,)",
    ]


class TestHubLayout:
    """Folders as model hubs have them."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("safetensors")

    @pytest.mark.parametrize(("make", "num_files"), [(folders.gpt2, 1), (folders.llama3, 3)])
    def test_weights(self, make: Any, num_files: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        backbone = make()
        folders.write_in_hub_layout(backbone, tmp_path / "preset", num_files)
        with on("tensor").scope(), caplog.at_level(logging.WARNING, "keras_ext"):
            model = keras_ext.from_preset(hub.models.CausalLM, str(tmp_path / "preset"))
        assert_same_weights(backbone, model.backbone)
        assert ("transformer.h.1.attn.bias" in caplog.text) == (make is folders.gpt2)
        assert_same_weights(hub.models.CausalLM.from_preset(str(tmp_path / "preset")), model)

    def test_names_all_that_differs(self, tmp_path: Path) -> None:
        tensors = folders.write_in_hub_layout(folders.llama3(), tmp_path / "preset", 2)
        del tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.1.self_attn.q_proj.weight"] = np.zeros([32, 30], "float32")
        tensors["lm_head.weight"] = np.zeros([31, 320], "float32")
        folders.write_tensors(tmp_path / "preset", tensors, 2)
        with on("tensor").scope(), pytest.raises(ValueError, match="do not fit the model") as raised:
            keras_ext.from_preset(hub.models.CausalLM, str(tmp_path / "preset"))
        lines = str(raised.value).splitlines()
        assert [line.partition(" (of")[0] for line in lines[1:]] == [
            "misshapen: lm_head.weight",
            "misshapen: model.layers.1.self_attn.q_proj.weight",
            "missing: model.layers.0.mlp.up_proj.weight",
        ]
        assert "shape (32, 4, 8), in the file (32, 30)" in lines[2]

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        folders.write_in_hub_layout(folders.gpt2(), tmp_path / "preset")
        path = tmp_path / "preset" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        with on("tensor").scope(), pytest.raises(ValueError, match=r"is to have .* bytes"):
            keras_ext.from_preset(hub.models.CausalLM, str(tmp_path / "preset"))


def test_errors_of_the_caller_are_his_own(own: Path) -> None:
    with on("tensor").scope():
        with pytest.raises(ValueError, match="no_such_policy") as raised:
            keras_ext.from_preset(hub.models.CausalLM, str(own), dtype="no_such_policy")
        assert "do not fit" not in str(raised.value)
        with pytest.raises(ValueError, match=r"config\.json"):
            keras_ext.from_preset(hub.models.CausalLM, str(own.parent))
    assert json.loads((own / "config.json").read_text())
