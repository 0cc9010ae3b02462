"""Files of weights in Keras' legacy format, such as those of ``keras.applications``: weights by layer, in order.

Source: the attributes ``layer_names`` and ``weight_names`` that ``keras.src.legacy.saving.legacy_h5_format`` writes.
Tested in ``tests/keras_ext/checkpoints/test_load_weights.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py

from strategies.saving.file_contents import DatasetOfFile


class TensorsByLayer(dict[str, Any]):
    """Tensors by the names in a file that does not say which of a model's weights they are, but has layers in order.

    Attributes:
        layers: for each layer with weights, the names of its weights in order.
    """

    def __init__(self, tensors: Mapping[str, Any], layers: Sequence[Sequence[str]]) -> None:
        super().__init__(tensors)
        self.layers = layers


def open_legacy_h5(path: Path) -> TensorsByLayer | None:
    """Returns the weights of a file in the legacy format, with or without a model's config; None for other files."""
    with h5py.File(path, "r") as file:
        root = file.get("model_weights", file)
        layers = _texts(root, "layer_names")
        if not layers:
            return None
        found: dict[str, Any] = {}
        names = []
        for layer in layers:
            names.append([f"{layer}/{weight}" for weight in _texts(root[layer], "weight_names")])
            found |= {name: DatasetOfFile(root[name]) for name in names[-1]}
    return TensorsByLayer(found, [each for each in names if each])


def _texts(group: Any, name: str) -> list[str]:
    """Returns a list of texts among a group's attributes; a long list is divided among several of them."""
    parts = [group.attrs[name]] if name in group.attrs else []
    while f"{name}{len(parts)}" in group.attrs:
        parts.append(group.attrs[f"{name}{len(parts)}"])
    return [text.decode() if isinstance(text, bytes) else str(text) for part in parts for text in part]
