"""LoRA adapters of layers: Keras' own files contain kernels with the adapters' product added, and no adapters.

Tested in ``tests/keras_ext/checkpoints/test_adapters.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from strategies.replica.whole_weights import joined


def adapters_of(layer: Any) -> list[Any]:
    """Returns A and B of a layer whose LoRA is enabled; an empty list for others."""
    if not getattr(layer, "lora_enabled", False):
        return []
    kind = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
    return [getattr(layer, f"lora_{kind}_{each}") for each in ("a", "b")]


def adapters_in(model: Any) -> list[Any]:
    """Returns the adapters of all layers of a model, with shards joined to whole weights."""
    found: list[Any] = joined([adapter for layer in model._flatten_layers() for adapter in adapters_of(layer)])
    return found


@contextlib.contextmanager
def kernels_apart(model: Any) -> Iterator[None]:
    """Context manager: files are written with kernels without the adapters' product, so that training can resume."""
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    for layer in layers:
        layer.lora_enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.lora_enabled = True
