"""Chains of layers that treat each channel by itself, through which pieces of the channels pass.

A pair of a column-parallel and a row-parallel layer may have such a chain between them. The contract is tested in
``tests/keras_ext/tensor/test_plan.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_ext.tensor.activations import is_elementwise

# Layers that treat each channel by itself, so that pieces of the channels can pass.
_CHANNELWISE = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.Dropout,
    keras.layers.BatchNormalization,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.ZeroPadding2D,
)


def in_pieces_of_channels(
    kinds: Mapping[str, str | None], layers: Mapping[str, Any], followers: Mapping[str, str]
) -> frozenset[str]:
    """Returns the paths of layers whose output stays in pieces: from a column-parallel to its row-parallel layer."""
    found: set[str] = set()
    for path, kind in kinds.items():
        last = end_of_chain(path, layers, followers) if kind == "column" else None
        if last is None or kinds[last] != "row" or not is_elementwise(layers[path].activation):
            continue
        while path != last:
            found.add(path)
            path = followers[path]
    return frozenset(found)


def end_of_chain(path: str, layers: Mapping[str, Any], followers: Mapping[str, str]) -> str | None:
    """Returns the path of the layer of the same class that ends the channelwise chain after `path`; else None."""
    wanted = type(layers[path])
    while (path := followers.get(path, "")) and type(layers[path]) in _CHANNELWISE:
        if not _lets_pieces_pass(layers[path]):
            return None
    return path if path and type(layers[path]) is wanted and getattr(layers[path], "groups", 1) == 1 else None


def _lets_pieces_pass(layer: Any) -> bool:
    if type(layer) is keras.layers.Activation:
        return is_elementwise(layer.activation)
    if type(layer) is keras.layers.BatchNormalization:
        return layer.axis in (-1, layer.input_spec.ndim - 1)
    if type(layer) is keras.layers.Dropout:
        return layer.noise_shape is None
    return getattr(layer, "data_format", "channels_last") == "channels_last"
