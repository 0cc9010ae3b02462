"""The tensors of Keras' files of weights, found without reading their values, and read later box by box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from strategies.replica.stored_array import Box


class DatasetOfFile:
    """A dataset of an HDF5 file, which is opened for each box that is read.

    Args:
        dataset: the dataset in the open file.
    """

    def __init__(self, dataset: Any) -> None:
        #: The path of the file, and the name in it.
        self.key = (str(dataset.file.filename), str(dataset.name))
        self.shape = tuple(dataset.shape)
        # Keras writes bfloat16, which h5py does not know, as bytes.
        self.dtype = tf.bfloat16.as_numpy_dtype if dataset.attrs.get("dtype") == "bfloat16" else dataset.dtype

    def __getitem__(self, where: Box) -> np.ndarray:
        path, name = self.key
        with h5py.File(path, "r") as file:
            value = np.asarray(file[name][where])
        return value if value.dtype == self.dtype else value.view(self.dtype)


def datasets_of(path: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """Returns the shapes of all weights in a file of weights, or in those of an index, by file and name.

    Args:
        path: a file ``*.weights.h5``, or the index ``*.weights.json`` of several.
    """
    files = [path]
    if path.suffix == ".json":
        places = json.loads(path.read_text())["weight_map"].values()
        names = {name for place in places for name in (place if isinstance(place, list) else [place])}
        files = [path.with_name(name) for name in sorted(names)]
    found: dict[tuple[str, str], tuple[int, ...]] = {}

    for each in files:
        with h5py.File(each, "r") as file:

            def note(name: str, entry: Any, each: Path = each) -> None:
                if isinstance(entry, h5py.Dataset):
                    found[str(each), f"/{name}"] = tuple(entry.shape)

            file.visititems(note)
    return found
