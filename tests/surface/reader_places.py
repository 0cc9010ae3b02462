"""The places in which readers are trained: one device, a mesh of this process, or a strategy over processes."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from tests.surface.meshes import MESHES, Mesh
from tests.surface.readers import Reader
from tests.surface.reading import MODELS, compiled

Values = Mapping[str, Sequence[Any]]
Run = tuple[Values | Exception, Sequence[warnings.WarningMessage]]

#: Meshes in one process. Batches of 5 and 2 rows: 2, 2, 1 and 1, 1, 0 rows on three replicas.
IN_PROCESS: Mapping[str, Mesh] = {
    "data=2": MESHES["data=2"],
    "data=3": Mesh({"data": 3}),
    "shard=optimizer": MESHES["shard=optimizer"],
    "shard=weights": MESHES["shard=weights"],
    "tensor=2": MESHES["tensor=2"],
    "pipe=2": MESHES["pipe=2"],
}


@dataclass
class Place:
    """A place in which cells are trained: one device, a mesh of this process, or a strategy over processes.

    Attributes:
        strategy: None for one device.
        mesh: splits the models, if they are to be split.
        folder: folder of files, the same on all ranks; None in one process.
    """

    strategy: Any = None
    mesh: Mesh | None = None
    folder: Path | None = None
    _models: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    _runs: dict[tuple[Reader, Any], Run] = field(default_factory=dict)
    _num_folders: int = 0

    def new_folder(self) -> Path:
        """Returns a new folder, the same on all ranks, which call this in the same order."""
        if self.folder is None:
            return Path(tempfile.mkdtemp())
        self._num_folders += 1
        return self.folder / f"cell {self._num_folders}"

    @staticmethod
    def on(mesh: Mesh) -> Place:
        """Returns the `Place` of a mesh of this process."""
        return Place(mesh.strategy(), mesh)

    def scope(self) -> Any:
        """Returns the strategy's scope."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def model(self, inputs: str) -> Any:
        """Returns the compiled model for a kind of inputs, reset to its initial weights and slots."""
        if inputs not in self._models:
            keras.utils.set_random_seed(7)
            with self.scope():
                model = MODELS[inputs]() if self.mesh is None else self.mesh.spread(MODELS[inputs])
                compiled(model)
            path = self.new_folder() / "first.weights.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            model.save_weights(path)
            self._models[inputs] = model, path
        model, path = self._models[inputs]
        model.load_weights(path)
        model.stop_training = False
        # Keras keeps the epoch of a restored backup in the model, which is meant for a process that ends after `fit`.
        model._initial_epoch = 0
        return model

    def forget(self, inputs: str) -> None:
        """Drops a model after an error, which may have left it in any state; the next use makes a new one."""
        self._models.pop(inputs, None)

    def known(self, reader: Reader, run: Callable[[Reader, Place], Values]) -> Run:
        """Returns the result of a function here, which is called once for each reader."""
        if (reader, run) not in self._runs:
            self._runs[reader, run] = run_caught(reader, self, run)
        return self._runs[reader, run]


class BatchLogs(keras.callbacks.Callback):
    """Keeps the logs of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[list[float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the logs of a step."""
        self.values.append([float(value) for value in (logs or {}).values()])


def run_caught(reader: Reader, place: Place, run: Callable[[Reader, Place], Values]) -> Run:
    """Returns the numbers, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return run(reader, place), caught
        except Exception as error:
            place.forget(reader.inputs)
            return error, caught
