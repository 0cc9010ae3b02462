"""Split weights: arrays and files contain each as one whole weight."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import keras
import numpy as np

from strategies._keras_hooks.addresses import legacy_h5_format
from strategies._keras_hooks.wrapping import wrap
from strategies.replica.owners import spans_processes
from strategies.replica.splitting import value_of
from strategies.replica.whole_weights import joined


def install() -> None:
    """Wraps the methods that read and set weights of layers, and that list those of Keras 2 files."""
    wrap(keras.Layer, "get_weights", _get_weights, in_step=False)
    wrap(keras.Layer, "set_weights", _set_weights, in_step=False)
    wrap(legacy_h5_format, "_legacy_weights", _legacy_weights, in_step=False)


def _whole(variables: Sequence[Any]) -> list[Any] | None:
    """Returns the variables with shards joined to whole weights.

    Returns None, for Keras to do the rest, if no weight is split and all processes own all weights.
    """
    whole = joined(variables)
    return whole if len(whole) < len(variables) or any(map(spans_processes, variables)) else None


def _get_weights(original: Callable[..., Any], layer: keras.Layer) -> list[np.ndarray]:
    whole = _whole(layer.weights)
    return original(layer) if whole is None else list(map(value_of, whole))


def _set_weights(original: Callable[..., Any], layer: keras.Layer, weights: Sequence[Any]) -> None:
    whole = _whole(layer.weights)
    if whole is None:
        original(layer, weights)
        return
    if len(weights) != len(whole):
        raise ValueError(
            f"You called `set_weights(weights)` on layer '{layer.name}' with a weight list of length {len(weights)}, "
            f"but the layer was expecting {len(whole)} weights."
        )
    _assign(whole, weights, f"Layer {layer.name!r}")


def _legacy_weights(original: Callable[[keras.Layer], list[Any]], layer: keras.Layer) -> list[Any]:
    """Returns a layer's weights in the order of Keras 2 files, each split weight as one."""
    return joined(original(layer), only_split=True)


class WholeSlots(keras.Optimizer):
    """An optimizer whose files and arrays have the slots of each split weight as one."""

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Saves the slots, whole."""
        whole = _whole(self.variables)
        # The base class copies each variable into an array. A store takes variables, and one may keep them.
        is_copied = super().save_own_variables.__func__ is keras.Optimizer.save_own_variables
        if whole is None and not is_copied:
            super().save_own_variables(store)
            return
        for i, variable in enumerate(self.variables if whole is None else whole):
            store[str(i)] = variable

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Loads the slots from whole ones."""
        whole = _whole(self.variables)
        if whole is None:
            super().load_own_variables(store)
        elif len(store.keys()) != len(whole):
            # As in Keras: training continues with slots of zeros.
            warnings.warn(
                f"Skipping variable loading for optimizer '{self.name}', because it has {len(whole)} variables "
                f"whereas the saved optimizer has {len(store.keys())} variables. ",
                stacklevel=2,
            )
        else:
            for i, variable in enumerate(whole):
                variable.assign(store[str(i)])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the slots by whole arrays."""
        whole = _whole(self.variables)
        if whole is None:
            super().set_weights(weights)
        else:
            _assign(whole, weights, f"Optimizer {self.name!r}")


def _assign(variables: Sequence[Any], values: Sequence[Any], owner: str) -> None:
    """Assigns arrays to variables; Keras' own loops, too, end with the shorter list."""
    for variable, value in zip(variables, values, strict=False):
        if tuple(variable.shape) != tuple(value.shape):
            raise ValueError(
                f"{owner}: the weight {variable.name!r} has shape {tuple(variable.shape)}, which the given one has "
                f"not. Received: an array of shape {tuple(value.shape)}."
            )
        variable.assign(value)
