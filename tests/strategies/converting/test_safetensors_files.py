"""Other libraries read the files that are written, and what they write is read: whole tensors, and torch's parts.

The tests of torch and Orbax run where these are installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from strategies import convert
from strategies.converting import write_tensors
from strategies.saving.write_items import SHARED_BYTES
from tests.strategies.converting.values import read, same

safetensors_numpy = pytest.importorskip("safetensors.numpy")

INDEX = "model.safetensors.index.json"
_RANDOM = np.random.default_rng(0)
ARRAYS = {
    # A rank's file has a part of it.
    "layers/dense/vars/0": _RANDOM.normal(size=(SHARED_BYTES // 4 // 1000 + 1, 1000)).astype("float32"),
    "layers/dense/vars/1": _RANDOM.normal(size=(7,)).astype("float32"),
    "layers/norm/vars/0": _RANDOM.normal(size=(2, 3)).astype("float16"),
    "optimizer/vars/0": np.array(3, "int64"),
}


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """Returns a folder of two files in the layout of model hubs."""
    write_tensors(tmp_path / "ranks", ARRAYS, 3)
    assert convert.main([str(tmp_path / "ranks"), str(tmp_path / "hub"), "--ranks", "2", "--whole"]) == 0
    return tmp_path / "hub"


def test_the_package_reads_whole_tensors(hub: Path) -> None:
    listed = json.loads((hub / INDEX).read_text())["weight_map"]
    by_file = {file: safetensors_numpy.load_file(hub / file) for file in sorted(set(listed.values()))}
    assert len(by_file) == 2
    same({name: by_file[file][name] for name, file in listed.items()}, ARRAYS)
    assert sum(map(len, by_file.values())) == len(ARRAYS)
    same(read(hub), ARRAYS)


def test_the_package_reads_the_parts_of_a_rank(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ranks", ARRAYS, 2)
    files = [safetensors_numpy.load_file(path) for path in sorted((tmp_path / "ranks").glob("*.safetensors"))]
    name = "layers/dense/vars/0"
    parts = [files[0][f"{name}@1of2"], files[1][f"{name}@2of2"]]
    np.testing.assert_array_equal(np.concatenate(parts), ARRAYS[name].reshape(-1))
    same(read(tmp_path / "ranks"), ARRAYS)


def test_torch_reads_whole_tensors(hub: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    state = {name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype.name)) for name, each in ARRAYS.items()}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(state, storage_reader=checkpoint.HuggingFaceStorageReader(str(hub)), no_dist=True)
    same({name: each.numpy() for name, each in state.items()}, ARRAYS)


def test_files_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    state = {name: torch.from_numpy(each.copy()) for name, each in ARRAYS.items()}
    numbers = {name: 1 + i % 2 for i, name in enumerate(ARRAYS)}
    for options in ({}, {"fqn_to_index_mapping": numbers}, {"save_distributed": True}):
        folder = tmp_path / "of torch" / str(len(list(tmp_path.glob("*/*"))))
        writer = checkpoint.HuggingFaceStorageWriter(str(folder), **options)
        with pytest.warns(UserWarning, match="single process"):
            checkpoint.save(state, storage_writer=writer, no_dist=True)
        same(read(folder), ARRAYS)


def test_orbax_reads_whole_tensors(hub: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint.experimental.v1")
    context = orbax.Context()
    context.checkpoint_layout = orbax.options.CheckpointLayout.SAFETENSORS
    with context:
        found = orbax.load(hub)
    same({name: np.asarray(each) for name, each in found.items()}, ARRAYS)


def parts_of_torch(folder: Path, whole: dict[str, np.ndarray]) -> list[Path]:
    """Writes what two ranks of torch's writer would, each the half of the columns of each tensor; returns the files."""
    folder.mkdir()
    paths = []
    for rank in range(2):
        own: dict[str, np.ndarray] = {}
        places: dict[str, Any] = {}
        for name, each in whole.items():
            half = each.shape[-1] // 2
            own[name] = np.ascontiguousarray(each[..., rank * half : half if rank == 0 else None])
            places[name] = {"saved_offsets": [*[0] * (each.ndim - 1), rank * half]}
        path = folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        safetensors_numpy.save_file(own, path, {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0"})
        paths.append(path)
    return paths


def test_parts_of_torch(tmp_path: Path) -> None:
    whole = {
        "blocks.0.weight": _RANDOM.normal(size=(5, 7)).astype("float32"),
        "blocks.0.bias": _RANDOM.normal(size=(7,)).astype(ml_dtypes.bfloat16),
    }
    paths = parts_of_torch(tmp_path / "of torch", whole)
    same(read(tmp_path / "of torch"), whole)
    with pytest.raises(ValueError, match=r"Files are missing.*shard-00002.*blocks\.0\.bias, blocks\.0\.weight"):
        read(paths[1])
    paths[0].unlink()
    with pytest.raises(ValueError, match="Files are missing"):
        read(tmp_path / "of torch")


def test_folders_without_an_index(hub: Path, tmp_path: Path) -> None:
    (hub / INDEX).unlink()
    same(read(hub), ARRAYS)
    safetensors_numpy.save_file({"layers/dense/vars/1": ARRAYS["layers/dense/vars/1"]}, hub / "again.safetensors")
    with pytest.raises(ValueError, match="tensors of one name are in several files"):
        read(hub)
    (tmp_path / "ranks" / INDEX).unlink()
    with pytest.raises(ValueError, match="ranks is a sharded checkpoint without an index: it is not complete"):
        read(tmp_path / "ranks")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no complete checkpoint"):
        read(tmp_path / "empty")


def test_an_index_that_is_wrong(hub: Path) -> None:
    index = json.loads((hub / INDEX).read_text())
    del index["tensors"]
    index["weight_map"]["other"] = index["weight_map"]["optimizer/vars/0"]
    (hub / INDEX).write_text(json.dumps(index))
    for path in (hub, hub / INDEX):
        with pytest.raises(ValueError, match=r"names tensors that its files do not have\. Received: other"):
            read(path)
    (hub / INDEX).write_text("{")
    with pytest.raises(ValueError, match=r"index\.json: The index is damaged"):
        read(hub)
