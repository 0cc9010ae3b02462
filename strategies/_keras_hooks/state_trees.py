"""State trees (``model.get_state_tree``), which ``OrbaxCheckpoint`` writes: whole weights and slots, under their paths.

Keras makes a tree from the paths of variables. Shards of a weight have different paths; slots of shards may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies.replica.owners import spans_processes
from strategies.replica.splitting import SplitWeight, value_of
from strategies.replica.whole_weights import joined


class _Whole:
    """A weight or slot that may be split, as one variable with the path that it has on one device."""

    def __init__(self, whole: Any, path: str) -> None:
        self._whole = whole
        self.path = path
        #: Sets all parts.
        self.assign = whole.assign

    @property
    def value(self) -> tf.Tensor:
        """The whole value."""
        return tf.convert_to_tensor(self.numpy())

    def numpy(self) -> np.ndarray:
        """Returns the whole value. All processes call it if parts are on several processes."""
        return value_of(self._whole)


def create(
    original: Callable[..., dict[str, Any]], model: keras.Model, variables: Sequence[Any], value_format: str
) -> dict[str, Any]:
    """Returns the tree of a model's variables; ``original`` makes one of the variables that it gets."""
    return original(_named(model, variables), value_format)


def assign(
    original: Callable[..., None], model: keras.Model, variables: Sequence[Any], values: Mapping[str, Any]
) -> None:
    """Assigns values to a model's variables by path; ``original`` does so for the variables that it gets."""
    original(_named(model, variables), values)


def _named(model: keras.Model, variables: Sequence[Any]) -> Sequence[Any]:
    """Returns the variables, with one whole in place of the parts of a weight or slot."""
    wholes = joined(variables)
    if len(wholes) == len(variables) and not any(map(spans_processes, variables)):
        return variables
    paths = {}
    for weight in joined(model.variables, only_split=True):
        if isinstance(weight, SplitWeight):
            paths[str(weight.shards[0].path)] = str(weight.path)
    return [_Whole(each, _path(str(each.path), paths)) for each in wholes]


def _path(path: str, paths: Mapping[str, str]) -> str:
    """Returns the path of a whole, given that of its first part: of a weight, or of a slot named by a weight's path."""
    if path in paths:
        return paths[path]
    folder, _, name = path.rpartition("/")
    for part, whole in paths.items():
        prefix = part.replace("/", "_")
        if name.startswith(f"{prefix}_"):
            return f"{folder}/{whole.replace('/', '_')}{name.removeprefix(prefix)}"
    return path
