"""Files of weights that are loaded into a model without being read, so that its copy reads only its own parts.

Keras' and KerasHub's loaders assign arrays to the variables of a model, one after the other. Here the variables are
deferred, and the arrays read their file when they are used: an assignment only notes which array a variable is to have.
So each process can find everything that is wrong with the files before any process waits for another one.

Its contract is tested in ``tests/keras_ext/presets``.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from strategies.replica.deferred import DeferredVariable, StoredDraw, draw_of
from strategies.replica.stored_array import StoredArray
from strategies.saving.file_contents import DatasetOfFile, datasets_of


@dataclasses.dataclass
class Differences:
    """The differences between weights and the tensors of files; shapes are by paths of variables, or names of tensors.

    Attributes:
        missing: weights that no file has, with their shapes.
        extra: tensors that no weight has, with their shapes.
        misshapen: weights whose tensors have another shape, with their shapes and those of the tensors.
    """

    missing: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    extra: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    misshapen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.misshapen)


class Loading:
    """Files that are loaded without being read.

    Args:
        collects: True to note everything that differs, instead of raising an error for the first weight that does.
    """

    def __init__(self, *, collects: bool) -> None:
        self.collects = collects
        self.differences = Differences()
        # By file and name.
        self._datasets: dict[tuple[str, str], tuple[int, ...]] = {}
        self._used: set[tuple[str, str]] = set()
        self._failed: dict[int, Differences] = {}

    def open(self, path: object) -> None:
        """Notes the datasets of a file, or files, of weights that Keras is about to load."""
        if isinstance(path, (str, Path)) and str(path).endswith((".weights.h5", ".weights.json")):
            self._datasets |= datasets_of(Path(path))

    def array(self, dataset: Any) -> StoredArray:
        """Returns the array of a dataset of h5py; it outlives the open file."""
        found = DatasetOfFile(dataset)
        self._used.add(found.key)
        return StoredArray(found)

    def assign(self, variable: Any, value: StoredArray) -> bool:
        """Notes which array a Keras variable is to have; returns False if it has its value already."""
        expected, found = tuple(variable.shape), tuple(value.shape)
        if expected != found:
            if not self.collects:
                raise ValueError(f"{variable.path!r} has shape {expected}. Received: a tensor of shape {found}.")
            self.differences.misshapen[variable.path] = (expected, found)
            return True
        component = variable._value
        if draw_of(variable) is None or not isinstance(component, DeferredVariable):
            return False
        component.draw = StoredDraw(value)
        return True

    def compare(self, saveable: Any, store: Any) -> None:
        """Notes how a layer that Keras could not load differs from its entry of a store."""
        found = Differences()
        own = [*getattr(saveable, "_trainable_variables", ()), *getattr(saveable, "_non_trainable_variables", ())]
        arrays = {key: store[key] for key in store.keys()}  # noqa: SIM118 (a store of Keras is no mapping)
        for index, variable in enumerate(own):
            expected, array = tuple(variable.shape), arrays.get(str(index))
            if array is None:
                found.missing[variable.path] = expected
            elif tuple(array.shape) != expected:
                found.misshapen[variable.path] = (expected, tuple(array.shape))
        for key, array in arrays.items():
            if not (key.isdecimal() and int(key) < len(own)):
                found.extra[f"{saveable.name}/vars/{key}"] = tuple(array.shape)
        self._failed[id(saveable)] = found

    def fail(self, saveables: Iterable[Any]) -> None:
        """Takes over what was noted of the layers that Keras could not load at any of their places in the file."""
        for saveable in saveables:
            found = self._failed[id(saveable)]
            self.differences.missing |= found.missing
            self.differences.extra |= found.extra
            self.differences.misshapen |= found.misshapen

    def close(self) -> Differences:
        """Returns all differences, with the tensors of Keras' files that no layer has read."""
        for (_, name), shape in self._datasets.items() - self._used_items():
            # A layer has a random state or not by arguments such as the rate of dropout.
            if "seed_generator" not in name:
                self.differences.extra[name.strip("/")] = shape
        return self.differences

    def _used_items(self) -> set[tuple[tuple[str, str], tuple[int, ...]]]:
        return {(key, self._datasets[key]) for key in self._used if key in self._datasets}


_loading: contextvars.ContextVar[Loading | None] = contextvars.ContextVar("keras_strategies_loading", default=None)


def current_loading() -> Loading | None:
    """Returns the files that are being loaded without being read; None outside of `loading_unread`."""
    return _loading.get()


@contextlib.contextmanager
def loading_unread(*, collects: bool) -> Iterator[Loading]:
    """Context manager: files of weights that Keras loads are not read.

    Args:
        collects: as for `Loading`.
    """
    loading = Loading(collects=collects)
    token = _loading.set(loading)
    try:
        yield loading
    finally:
        _loading.reset(token)
