"""Writes named tensors as files of weights, one tensor after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from strategies.atomic_file import atomic_file
from strategies.replica.stored_array import StoredArray, boxes, ranges
from strategies.saving.safetensors_file import write
from strategies.saving.sharded_files import FORMAT, RankFile, file_of, finish
from strategies.saving.write_items import WriteItem, write_items

KINDS = "*.weights.h5, *.safetensors, or a folder, whose name has no suffix or .sharded, for a file for each rank"
_ADAPTERS = "adapters/"
# Libraries that load from model hubs look for it in the header.
_OF_HUBS = "pt"


def write_tensors(path: Path, tensors: Mapping[str, Any], num_ranks: int = 1, *, whole: bool = False) -> None:
    """Writes tensors, whole or not at all.

    Args:
        path: see `KINDS`. A file is replaced, a folder is to be new or empty.
        tensors: as `open_tensors` yields them.
        num_ranks: the number of files in a folder.
        whole: True to have each tensor in one of the files, as model hubs do; False to divide large ones.

    Raises:
        ValueError: the path is of no known format, or its format cannot have the tensors.
        OSError: it cannot be written.
    """
    if path.name.endswith(".weights.h5"):
        adapters = [name for name in tensors if name.startswith(_ADAPTERS)]
        if adapters:
            raise ValueError(
                "Keras' files have kernels with their LoRA adapters added, and no adapters: restore the checkpoint "
                "into the model with keras_ext.Checkpoints, and save that. Received: "
                f"{len(adapters)} adapters."
            )
        with atomic_file(path) as part:
            _write_h5(part, tensors)
    elif path.suffix == ".safetensors":
        with atomic_file(path) as part:
            write(part, {name: _whole(tensor) for name, tensor in tensors.items()}, {"format": _OF_HUBS})
    elif path.suffix in ("", ".sharded"):
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"A checkpoint is written to a folder that is new or empty. Received: {path}.")
        path.mkdir(parents=True, exist_ok=True)
        _write_folder(path, tensors, num_ranks, whole)
    else:
        raise ValueError(f"{path} is of no known format. Pass {KINDS}.")


def _write_h5(path: Path, tensors: Mapping[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            if tensor.dtype.name == "bfloat16":
                # As Keras writes it: h5py does not know this dtype.
                dataset = file.create_dataset(name, tensor.shape, "V2")
                dataset.attrs["dtype"] = "bfloat16"
            else:
                dataset = file.create_dataset(name, tensor.shape, tensor.dtype)
            for box, value in _boxes(tensor):
                dataset[box] = value.view(dataset.dtype)


def _boxes(tensor: Any) -> Iterator[tuple[Any, np.ndarray]]:
    if not tensor.shape:
        yield (), np.asarray(tensor[()])
        return
    for begin, end in ranges(math.prod(tensor.shape), tensor.dtype.itemsize):
        for box in boxes(tensor.shape, begin, end):
            yield box, np.asarray(tensor[box])


def _whole(tensor: Any) -> np.ndarray:
    # Unlike np.ascontiguousarray, it keeps scalars.
    return np.array(StoredArray(tensor), order="C")


def _write_folder(folder: Path, tensors: Mapping[str, Any], num_ranks: int, whole: bool) -> None:
    # Lazy: a rank's parts are read when its file is written.
    values = {name: StoredArray(tensor) for name, tensor in tensors.items()}
    items = _whole_items(values, num_ranks) if whole else write_items(values, num_ranks)
    for rank in range(num_ranks):
        file = RankFile.from_items(file_of(rank, num_ranks), values, items, rank)
        file.write(folder, _OF_HUBS if whole else FORMAT)
    finish(folder, num_ranks, lambda: True)


def _whole_items(values: Mapping[str, StoredArray], num_files: int) -> list[WriteItem]:
    """Returns an item for each tensor, in the file that has the fewest bytes so far."""
    found, load = [], [0] * num_files
    for name, value in values.items():
        file = load.index(min(load))
        load[file] += value.size * value.dtype.itemsize
        found.append(WriteItem(name, value, (0,) * value.ndim, value.shape, 0, value.size, rank=file))
    return found
