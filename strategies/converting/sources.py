"""Opens files of weights: their tensors by name, which are read when they are used."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from strategies.converting import legacy_h5, orbax, safetensors_files
from strategies.replica.stored_array import Box
from strategies.saving.file_contents import DatasetOfFile, datasets_of
from strategies.saving.sharded_files import INDEX, read_sharded_index
from strategies.saving.sharded_tensor import ShardedTensor, damaged_tensors, sharded_tensors

KINDS = (
    "a folder of keras_ext.Checkpoints or of one of its sharded checkpoints, *.h5, *.keras, "
    f"*.safetensors or {INDEX} or their folder, a folder of Orbax, or the prefix of a tf.train.Checkpoint"
)


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Mapping[str, Any]]:
    """Context manager: yields the tensors of a file or folder by name, with a shape, a dtype, and boxes to be read.

    Args:
        path: see `KINDS`.

    Raises:
        ValueError: it is of no known format, or its bytes are not those that were written; with the tensors' names.
        OSError: it cannot be read.
    """
    if path.is_dir():
        yield _of_folder(path)
    elif path.name == INDEX or path.name.endswith(".safetensors.index.json"):
        yield _of_index(path)
    elif path.suffix == ".safetensors":
        yield safetensors_files.open_files([path])
    elif path.suffix == ".h5" or path.name.endswith(".weights.json"):
        legacy = legacy_h5.open_legacy_h5(path) if path.suffix == ".h5" else None
        yield _of_h5(path) if legacy is None else legacy
    elif path.suffix == ".keras":
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".weights.h5")]
            if len(names) != 1:
                raise ValueError(f"{path} has no file of weights. Received: the files {archive.namelist()}.")
            yield _of_h5(Path(archive.extract(names[0], folder)))
    elif path.with_name(f"{path.name}.index").exists():
        yield _of_tensorflow(path)
    else:
        known = "does not exist" if not path.exists() else "has no known format"
        raise ValueError(f"{path} {known}. Pass {KINDS}.")


def _of_folder(folder: Path) -> Mapping[str, Any]:
    if (folder / INDEX).exists():
        return _of_index(folder / INDEX)
    for mark in sorted(folder.glob("step-*.json"), reverse=True):
        shards, whole = mark.with_suffix(".sharded"), mark.with_suffix(".weights.h5")
        if (shards / INDEX).exists():
            return _of_shards(shards)
        if whole.exists():
            if (adapters := mark.with_suffix(".adapters.npz")).exists():
                raise ValueError(
                    f"{whole} is a file of plain Keras, without the adapters in {adapters}. Restore the checkpoint "
                    "into the model, and save that; or pass the file, to convert it without them."
                )
            return _of_h5(whole)
    tree = orbax.find_tree(folder)
    if tree is not None:
        return orbax.open_tree(tree)
    found = safetensors_files.open_folder(folder)
    if found is None:
        raise ValueError(f"{folder} has no complete checkpoint. Pass {KINDS}.")
    return found


def _of_index(path: Path) -> Mapping[str, Any]:
    try:
        read = json.loads(path.read_text())
        is_of_hub = "weight_map" in read and "tensors" not in read
    except (ValueError, TypeError):
        # The reader of our own says which file is damaged.
        is_of_hub = False
    return safetensors_files.open_hub_index(path) if is_of_hub else _of_shards(path.parent)


def _of_shards(folder: Path) -> dict[str, ShardedTensor]:
    index = read_sharded_index(folder)
    lines = damaged_tensors(folder, index)
    if lines:
        raise ValueError("\n".join([f"{folder} is damaged.", *lines]))
    return sharded_tensors(folder, index)


def _of_h5(path: Path) -> dict[str, DatasetOfFile]:
    found = {}
    for file, name in datasets_of(path):
        with h5py.File(file, "r") as opened:
            found[name.removeprefix("/")] = DatasetOfFile(opened[name])
    return found


def _of_tensorflow(prefix: Path) -> dict[str, _TensorOfReader]:
    reader = tf.train.load_checkpoint(str(prefix))
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    # Bookkeeping of TensorFlow, such as the graph of objects, is text.
    return {
        name: _TensorOfReader(reader, name, shapes[name], dtypes[name]) for name in shapes if dtypes[name] != tf.string
    }


class _TensorOfReader:
    """A tensor of a checkpoint of TensorFlow. It is read as a whole, box after box."""

    def __init__(self, reader: Any, name: str, shape: Any, dtype: tf.DType) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype.as_numpy_dtype)
        self._reader, self._name = reader, name

    def __getitem__(self, where: Box) -> np.ndarray:
        return np.asarray(self._reader.get_tensor(self._name))[where]
