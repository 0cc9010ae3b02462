"""Presets that are loaded by two processes: run by `test_spanning_presets` in both at once, never collected.

Each rank has its folders on its own disk. Assertions compare values that both know: if one fails, the other fails, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import keras_hub as hub
import numpy as np
import pytest

import keras_ext
from strategies import layer_api
from strategies.saving import file_contents, safetensors_file
from tests.keras_ext.presets import folders
from tests.strategies.processes.mesh_strategies import new_strategy, on

TENSOR, PIPE, SHARDED = {"tensor": 2}, {"pipe": 2}, {"data": 2}
#: KerasHub reads the last one with a package that the extra "hub" installs.
FORMATS = ["own", "files", *(["hub"] if importlib.util.find_spec("safetensors") else [])]


@functools.cache
def sharded() -> Any:
    return new_strategy(SHARDED, shard="weights")


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(TENSOR)
    on(PIPE)
    sharded()


def rank() -> int:
    return int(on(TENSOR).extended.engine.process_group.rank)


@pytest.fixture(scope="session")
def presets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This rank's folder with the same model in each format."""
    folder = tmp_path_factory.mktemp("presets")
    backbone = folders.gpt2()
    hub.models.GPT2CausalLM(backbone, preprocessor=None).save_to_preset(str(folder / "own"))
    backbone.save_to_preset(str(folder / "files"), max_shard_size=6e-5)
    folders.write_in_hub_layout(backbone, folder / "hub", 2)
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of elements of each box that this rank reads from files."""
    sizes: list[int] = []

    def counting(original: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], np.ndarray]:
        def counted(dataset: Any, where: Any) -> np.ndarray:
            value = original(dataset, where)
            sizes.append(value.size)
            return value

        return counted

    for owner in (file_contents.DatasetOfFile, safetensors_file.FileTensor):
        monkeypatch.setattr(owner, "__getitem__", counting(owner.__getitem__))
    return sizes


def plain(path: Path) -> Any:
    return hub.models.CausalLM.from_preset(str(path), preprocessor=None)


def load(path: Path, split: Any = None, cls: Any = hub.models.CausalLM, **kwargs: Any) -> Any:
    return keras_ext.from_preset(cls, str(path), split, **kwargs)


def assert_equal(one: Any, other: Any) -> None:
    for first, second in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def own_elements(model: Any) -> int:
    """Returns the number of elements of the weights that this rank holds."""
    return sum(int(np.prod(weight.shape)) for weight in model.weights if not layer_api.is_remote(weight))


@pytest.mark.parametrize("form", FORMATS)
def test_each_rank_reads_its_shards(form: str, presets: Path, read: list[int]) -> None:
    expected = plain(presets / form)
    with on(TENSOR).scope():
        model = load(presets / form, preprocessor=None)
    own = own_elements(model)
    assert own < 0.6 * expected.count_params()
    if form != "hub":
        # Converters cut tensors of all heads into those of queries, keys and values.
        assert sum(read) == own
    assert_equal(model, expected)


def test_each_rank_reads_its_stages(presets: Path, read: list[int]) -> None:
    with on(PIPE).scope():
        model = load(
            presets / "own",
            lambda backbone: keras_ext.PipelineModel(backbone, num_microbatches=2, partition=["transformer_layer_1"]),
            hub.models.Backbone,
        )
    assert sum(read) == own_elements(model)
    assert_equal(model, plain(presets / "own").backbone)


def test_weights_that_are_sharded_over_replicas(presets: Path) -> None:
    for form in FORMATS:
        with sharded().scope():
            model = load(presets / form, preprocessor=None)
        assert_equal(model, plain(presets / form))


def test_trains_adapters_as_one_device(presets: Path) -> None:
    def trained(model: Any) -> Any:
        model.backbone.enable_lora(2)
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tokens = np.random.default_rng(0).integers(1, 300, (4, 8))
        x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
        model.fit(x, np.roll(tokens, -1, 1), batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model

    keras.utils.set_random_seed(1)
    expected = trained(plain(presets / "own"))
    keras.utils.set_random_seed(1)
    with on(TENSOR).scope():
        model = load(presets / "own", preprocessor=None)
        trained(model)
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_a_rank_holds_no_more_than_its_part_and_a_tensor(tmp_path: Path) -> None:
    """The figures of a preset of 1.2 GB over four processes: benchmarks/rank_memory."""
    backbone = folders.gpt2(vocabulary_size=4000, num_heads=16, hidden_dim=1024, intermediate_dim=4096)
    largest = max(4 * int(np.prod(weight.shape)) for weight in backbone.weights)
    whole = 4 * backbone.count_params()
    backbone.save_to_preset(str(tmp_path / "large"))
    del backbone
    gc.collect()
    with contextlib.suppress(AttributeError):
        # A function of glibc: returns free memory to the system.
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with on(TENSOR).scope():
        model = load(tmp_path / "large", cls=hub.models.Backbone)
    held = resident("VmHWM") - before
    part = 4 * own_elements(model)
    assert whole > 1e8
    assert part < 0.55 * whole
    # The rest is the model's graph and layers, and what the allocator keeps.
    assert held <= part + largest + 30e6, (held, part, largest)


def resident(name: str) -> int:
    """Returns the resident bytes of this process, now (VmRSS) or at their peak (VmHWM)."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


@pytest.mark.parametrize("mesh", ["tensor", "data"])
def test_what_is_wrong_on_one_rank_ends_all(mesh: str, tmp_path: Path) -> None:
    folders.gpt2().save_to_preset(str(tmp_path / "own"))
    folders.write_in_hub_layout(folders.gpt2(), tmp_path / "hub")
    name = "layers/transformer_decoder/_feedforward_intermediate_dense/vars/1"
    if rank() == 1:
        with h5py.File(tmp_path / "own" / "model.weights.h5", "r+") as file:
            del file[name]
        (tmp_path / "hub" / "config.json").unlink()
    strategy = on(TENSOR) if mesh == "tensor" else sharded()
    with strategy.scope():
        with pytest.raises(ValueError, match=r"On rank 1:\nmissing: .*feedforward_intermediate_dense/bias"):
            load(tmp_path / "own", cls=hub.models.Backbone)
        with pytest.raises(ValueError, match=r"config\.json"):
            load(tmp_path / "hub")
