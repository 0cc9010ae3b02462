"""LoRA adapters in checkpoints: Keras' own files contain kernels with the adapters' product added, and no adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strategies import layer_api


def write(path: Path, values: Sequence[Any]) -> None:
    """Writes the values of adapters; writes no file if there are none."""
    if values:
        with path.open("wb") as file:
            np.savez(file, *values)


def read(path: Path, model: Any) -> None:
    """Sets the adapters of a model to the values in a file.

    Raises:
        ValueError: the file contains other adapters, or the model has adapters and the file does not exist.
    """
    adapters = layer_api.adapters_in(model)
    values: list[Any] = []
    if path.exists():
        with np.load(path) as file:
            values = [file[name] for name in file.files]
    shapes = [tuple(adapter.shape) for adapter in adapters], [np.shape(value) for value in values]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{path} is of a model with other adapters. Call `enable_lora` on the layers, and with the rank, as when "
            f"it was written. Received: adapters of the shapes {shapes[0]}, and in the file {shapes[1]}."
        )
    for adapter, value in zip(adapters, values, strict=True):
        adapter.assign(value)
