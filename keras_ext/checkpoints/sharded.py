"""Checkpoints that each rank writes and reads its part of: which tensors they have, and how a model takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_ext.presets.verdict import lines_of
from strategies import layer_api

#: The number of tensors that an error names.
_NAMED = 20


class TensorsToSave:
    """The tensors of one model, save after save: as long as its variables are the same objects, Keras is not asked."""

    def __init__(self) -> None:
        self._key: list[Any] = []
        self._found: dict[str, Any] = {}

    def find(self, model: Any) -> dict[str, Any]:
        """Returns the same as ``layer_api.named_state``."""
        optimizer = getattr(model, "optimizer", None)
        variables = [*model.variables, *([] if optimizer is None else optimizer.variables)]
        # The tensors that are kept hold the variables, whose ids are not given to others meanwhile.
        key = [id(model), id(optimizer), *map(id, variables)]
        if key != self._key or any(not hasattr(each, "assign") for each in self._found.values()):
            self._found = layer_api.named_state(model)
            self._key = key
        return self._found


def load(model: Any, folder: Path) -> None:
    """Loads a checkpoint into a built model; each process reads its parts. Nothing is set if the tensors do not fit.

    All processes call it; they raise errors together.

    Args:
        model: a model whose optimizer is built.
        folder: the folder of the files.

    Raises:
        DamagedError: files cannot be read, or their bytes are not those that were written; with the tensors' names.
        ValueError: the checkpoint is of another model or optimizer; with the names of all tensors that differ.
    """
    with together(model, DamagedError):
        index = layer_api.read_sharded_index(folder)
        rank, num_ranks = layer_api.rank_of(model)
        files = sorted({part.file for tensor in index.values() for part in tensor.parts})
        lines = layer_api.damaged_tensors(folder, index, set(files[rank::num_ranks]).__contains__)
        if lines:
            raise DamagedError(listed(lines))
    with together(model, ValueError):
        lines = differences(layer_api.named_state(model), index)
        if lines:
            raise ValueError(f"{folder} is of another model or optimizer. Received:\n{listed(lines)}")
        layer_api.set_named_state(model, layer_api.sharded_tensors(folder, index))


class DamagedError(ValueError):
    """The files of a checkpoint cannot be read, or are damaged."""


@contextlib.contextmanager
def together(model: Any, kind: type[ValueError]) -> Iterator[None]:
    """Context manager: an error of one process becomes one of all processes, of this kind."""
    text, caught = "", None
    try:
        yield
    except (OSError, ValueError) as error:
        text, caught = str(error) or type(error).__name__, error
    texts = dict.fromkeys(each for each in layer_api.texts_of_job(model, text) if each)
    if texts:
        raise kind("\n".join(texts)) from caught


def differences(values: Mapping[str, Any], index: Mapping[str, Any]) -> list[str]:
    """Returns a line for each tensor that the model has and the files have not, or the reverse, or in another shape."""
    own = {name: layer_api.shape_and_dtype(value)[0] for name, value in values.items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in index.items()}
    return lines_of(
        layer_api.Differences(
            missing={name: shape for name, shape in own.items() if name not in theirs},
            extra={name: shape for name, shape in theirs.items() if name not in own},
            misshapen={name: (own[name], theirs[name]) for name in own if theirs.get(name, own[name]) != own[name]},
        )
    )


def listed(lines: list[str]) -> str:
    """Returns the first lines, and the number of the others."""
    more = len(lines) - _NAMED
    return "\n".join([*lines[:_NAMED], *([f"and {more} more"] if more > 0 else [])])
