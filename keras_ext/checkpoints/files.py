"""The files of checkpoints in their folder: weights as Keras writes them, and a mark with all other state."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from strategies.atomic_file import atomic_file

_FORMAT = 1


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoints in a folder, each with a name; names sort by age.

    A checkpoint counts once its mark exists, ``<name>.json``, which is written last and atomically.

    Attributes:
        folder: the folder; made when the first checkpoint is written.
        num_kept: the number of checkpoints to keep.
    """

    folder: Path
    num_kept: int

    def weights(self, name: str) -> Path:
        """Returns the path of a checkpoint's weights."""
        return self.folder / f"{name}.weights.h5"

    def adapters(self, name: str) -> Path:
        """Returns the path of a checkpoint's LoRA adapters, if its model has any."""
        return self.folder / f"{name}.adapters.npz"

    def shards(self, name: str) -> Path:
        """Returns the path of the folder of a sharded checkpoint's files."""
        return self.folder / f"{name}.sharded"

    def state(self, name: str) -> Path:
        """Returns the path of a checkpoint's mark, which holds its state."""
        return self.folder / f"{name}.json"

    def names(self) -> list[str]:
        """Returns the names of all checkpoints that have a mark, the newest first."""
        return sorted((path.stem for path in self.folder.glob("step-*.json")), reverse=True)

    def begin(self, name: str) -> None:
        """Prepares the folder for the weights of a checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # A mark of an earlier run would make unfinished weights count as a checkpoint.
        self.state(name).unlink(missing_ok=True)

    def begin_shards(self, name: str) -> None:
        """Prepares an empty folder for the files of a sharded checkpoint."""
        self.begin(name)
        if self.shards(name).exists():
            shutil.rmtree(self.shards(name))
        self.shards(name).mkdir()

    def finish(self, name: str, state: dict[str, Any]) -> None:
        """Writes the mark of a checkpoint whose weights are written, and deletes checkpoints that are not kept."""
        with atomic_file(self.state(name)) as file:
            file.write_text(json.dumps({"format": _FORMAT, **state}))
        # Checkpoints with later names are from another run, or cannot be read.
        kept = [each for each in self.names() if each <= name][: self.num_kept]
        # Marks first: a process that is killed here must not leave one without its files.
        for path in sorted(self.folder.glob("step-*"), key=lambda path: path.suffix != ".json"):
            if path.name.split(".")[0] in kept:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def read(self, name: str, steps_per_epoch: int) -> dict[str, Any]:
        """Returns the state of a checkpoint.

        Raises:
            ValueError: it has epochs of another length, or another format.
            OSError, json.JSONDecodeError: it cannot be read.
        """
        path = self.state(name)
        state: dict[str, Any] = json.loads(path.read_text())
        if state.get("format") != _FORMAT or state["steps_per_epoch"] != steps_per_epoch:
            raise ValueError(
                f"{path} does not belong to this run: it has epochs of {state.get('steps_per_epoch')} steps (format "
                f"{state.get('format')}). Received: steps_per_epoch={steps_per_epoch}. "
                "Continue with the same data and batch size, or start over in another folder."
            )
        return state

    def read_as_text(self, name: str, steps_per_epoch: int) -> str:
        """Returns the state of a checkpoint as JSON, or what is wrong: as "refused", or as "unreadable"."""
        try:
            return json.dumps(self.read(name, steps_per_epoch))
        except (OSError, json.JSONDecodeError) as error:
            return json.dumps({"unreadable": str(error)})
        except ValueError as error:
            return json.dumps({"refused": str(error)})


def load_keras_file(model: keras.Model, path: Path) -> None:
    """Loads weights as Keras does, but raises an error where Keras warns that the optimizer does not fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.load_weights(str(path))
        except ValueError as error:
            raise ValueError(f"{path} is of another model. {error}") from error
    for warning in caught:
        if "optimizer" in str(warning.message):
            raise ValueError(f"{path} is of another optimizer. {warning.message}")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
