"""One cell of the third grid: a reader and a strategy, trained, tested and asked for predictions beside one device.

The model of a strategy and of a kind of inputs is made once and set back before each reader, as a step is traced once
for all of them. A stop in the middle of an epoch, and the way from there, is in `reader_stops`.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

import strategies
from tests.surface.cells import Outcome, _difference, _is_ours, _words
from tests.surface.meshes import MESHES, Mesh
from tests.surface.reading import MODELS, compiled
from tests.surface.readers import READERS, Reader

TOLERANCE = 1e-6
EPOCHS = 2

Values = Mapping[str, Sequence[Any]]
Run = tuple[Values | Exception, Sequence[warnings.WarningMessage]]

#: In one process. Batches of 5 and 2 rows: 2, 2, 1 and 1, 1, 0 rows on three replicas.
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
    """Where cells are trained: one device, a mesh of this process, or a strategy over processes.

    Attributes:
        strategy: None for one device.
        mesh: splits the models, if they are to be split.
        folder: of files, the same on all ranks; None in one process.
    """

    strategy: Any = None
    mesh: Mesh | None = None
    folder: Path | None = None
    _models: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    _runs: dict[tuple[Reader, Any], Run] = field(default_factory=dict)
    _num_folders: int = 0

    def new_folder(self) -> Path:
        """Returns a new folder, the same on all ranks, which all ask for in the same order."""
        if self.folder is None:
            return Path(tempfile.mkdtemp())
        self._num_folders += 1
        return self.folder / f"cell {self._num_folders}"

    @staticmethod
    def on(mesh: Mesh) -> Place:
        """Returns the place of a mesh of this process."""
        return Place(mesh.strategy(), mesh)

    def scope(self) -> Any:
        """Returns the strategy's scope."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def model(self, inputs: str) -> Any:
        """Returns the compiled model of a kind of inputs, set back to its first weights and slots."""
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
        # Keras keeps the epoch that a backup was of, for a process that ends after `fit`.
        model._initial_epoch = 0
        return model

    def forget(self, inputs: str) -> None:
        """Has a model made again after an error, which may have left it in any state."""
        self._models.pop(inputs, None)


    def known(self, reader: Reader, run: Callable[[Reader, Place], Values]) -> Run:
        """Returns what a function comes to here, which is called once for each reader."""
        if (reader, run) not in self._runs:
            self._runs[reader, run] = _run(reader, self, run)
        return self._runs[reader, run]


class BatchLogs(keras.callbacks.Callback):
    """Keeps the logs of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[list[float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the logs of a step."""
        self.values.append([float(value) for value in (logs or {}).values()])


def trained(reader: Reader, place: Place) -> Values:
    """Trains for two epochs, tests and predicts; returns all that is compared."""
    model = place.model(reader.inputs)
    keras.utils.set_random_seed(11)
    logs = BatchLogs()
    with place.scope():
        arguments, of_test, of_predict = (reader.make(0) for _ in range(3))
    history = model.fit(**arguments, epochs=EPOCHS, verbose=0, callbacks=[logs]).history
    return {
        "logs of steps": logs.values,
        "history": [history[name] for name in sorted(history)],
        "weights": model.get_weights(),
        "test": [model.evaluate(**_of_test(of_test), verbose=0)],
        "predictions": [model.predict(**_of_predict(of_predict), verbose=0)],
    }


def _of_test(arguments: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in arguments.items() if name not in ("shuffle", "steps_per_epoch")}
    return kept | {"steps": arguments.get("steps_per_epoch")}


def _of_predict(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _of_test(arguments).items() if name not in ("y", "sample_weight")}


def outcome(name: str, place: Place, plain: Place) -> Outcome:
    """Compares a reader at a place with one device."""
    return compared(READERS[name], place, plain, trained, trained)


def compared(
    reader: Reader,
    place: Place,
    plain: Place,
    run: Callable[[Reader, Place], Values],
    expected: Callable[[Reader, Place], Values],
) -> Outcome:
    """Runs a reader at both places, and compares.

    Args:
        reader: to read.
        place: of a strategy.
        plain: of one device.
        run: called for `place`.
        expected: called for `plain`, once for each reader.
    """
    if not reader.is_installed:
        return Outcome("not run", words=f"needs {reader.needs}")
    wanted, of_keras = plain.known(reader, expected)
    if isinstance(wanted, Exception):
        return Outcome("absent", words=f"plain Keras: {_words(wanted)}")
    found, of_ours = _run(reader, place, run)
    if isinstance(found, Exception):
        return Outcome("refused" if _is_ours(found) else "crash", words=_words(found))
    parts = {part: _difference(wanted[part], found[part]) for part in wanted}
    worst = max(parts, key=lambda part: parts[part])
    said = [str(each.message) for each in of_ours if issubclass(each.category, strategies.DifferenceWarning)]
    if said:
        return Outcome("warned", parts[worst], said[0])
    if parts[worst] > TOLERANCE:
        return Outcome("wrong", parts[worst], ", ".join(f"{part} {parts[part]:.1e}" for part in parts))
    new = _messages(of_ours) - _messages(of_keras)
    if new:
        # What Keras does not say on one device is a difference that a user sees.
        return Outcome("wrong", parts[worst], f"warns, unlike one device: {sorted(new)[0]}")
    return Outcome("equal", parts[worst])


def _messages(caught: Sequence[warnings.WarningMessage]) -> set[str]:
    """Returns what users are warned of: NumPy says its own of every file that Keras writes."""
    return {str(each.message) for each in caught if not issubclass(each.category, DeprecationWarning)}


def _run(reader: Reader, place: Place, run: Callable[[Reader, Place], Values]) -> Run:
    """Returns the numbers, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return run(reader, place), caught
        except Exception as error:
            place.forget(reader.inputs)
            return error, caught


def outcomes() -> Iterator[tuple[str, str, Outcome]]:
    """Yields reader, strategy and outcome of all cells of this process, those of stops included."""
    from tests.surface.reader_stops import KEEPERS, stopped

    plain = Place()
    for strategy, mesh in IN_PROCESS.items():
        place = Place.on(mesh)
        for name, reader in READERS.items():
            yield name, strategy, outcome(name, place, plain)
            for keeper in KEEPERS:
                yield f"{name}; {keeper}", strategy, stopped(reader, keeper, place, plain)


def table(outcomes: Mapping[tuple[str, str], Outcome]) -> str:
    """Returns a table of readers and strategies in Markdown, and below it what is not equal, with its words."""
    columns = list(dict.fromkeys(strategy for _, strategy in outcomes))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(name for name, _ in outcomes):
        kinds = [outcomes[name, column].kind if (name, column) in outcomes else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(kinds)} |")
    by_words: dict[tuple[str, str], list[str]] = {}
    for (name, strategy), each in outcomes.items():
        if each.kind != "equal":
            by_words.setdefault((each.kind, each.words), []).append(f"{name} ({strategy})")
    said = [f"- {kind}: {', '.join(cells)}: {words}" for (kind, words), cells in by_words.items()]
    return "\n".join([*lines, "", *said])
