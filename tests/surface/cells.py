"""One cell of the grid: a layer, something done to it, and a mesh, trained and compared with one device."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import strategies
from strategies import layer_api
from tests.strategies.parity.harness import largest
from tests.surface.columns import COLUMNS, TESTED, Column, CompilesItself, NotForThisLayer, missing
from tests.surface.meshes import MESHES, Mesh, policy
from tests.surface.rows import ROWS, Row, data

_OURS = tuple(str(Path(__file__).parents[2] / package) + "/" for package in ("strategies", "keras_ext"))
# The second batch is smaller, and its number of rows is odd.
_NUM_ROWS, _BATCH_SIZE = 7, 4

Values = Mapping[str, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        kind: "equal"; "warned" (differs, after a `strategies.DifferenceWarning`); "refused" (an error of ours); "wrong"
            (differs); "crash" (another error); "absent" (plain Keras cannot do it either).
        difference: the largest difference, relative where values are above 1; None if nothing was measured.
        words: message of the warning or of the error; for "wrong" the part that differs most.
    """

    kind: str
    difference: float | None = None
    words: str = ""

    @property
    def is_allowed(self) -> bool:
        """False for a wrong number or a crash."""
        return self.kind not in ("wrong", "crash")


def outcome(row: str, column: str, mesh: str) -> Outcome:
    """Trains one cell on one device and on the mesh, and compares them. The arguments are names."""
    how = MESHES[mesh]
    plain = _plain(row, column, how.accumulates)
    if isinstance(plain, str):
        return Outcome("absent", words=plain)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ours = _trained(ROWS[row], COLUMNS[column], how, how.accumulates)
        except Exception as error:
            return Outcome("refused" if is_ours(error) else "crash", words=words_of(error))
    parts = {name: difference_of(plain[name], ours.get(name, ())) for name in plain}
    if not plain.get("file: slots"):
        # Keras does not compile a loaded model whose class has its own `compile`. A pipeline's class does not.
        parts.pop("file: slots", None)
    worst = max(parts, key=lambda name: parts[name])
    if parts[worst] <= COLUMNS[column].tolerance:
        return Outcome("equal", parts[worst])
    said = [str(each.message) for each in caught if issubclass(each.category, strategies.DifferenceWarning)]
    if said:
        return Outcome("warned", parts[worst], said[0])
    words = ", ".join(f"{name} {parts[name]:.1e}" for name in parts if parts[name] > COLUMNS[column].tolerance)
    return Outcome("wrong", parts[worst], words)


@functools.lru_cache(maxsize=4)
def _plain(row: str, column: str, accumulates: bool) -> Values | str:
    """Returns the values on one device, or the reason why there are none."""
    if reason := ROWS[row].without.get(column) or missing(ROWS[row], COLUMNS[column]):
        return reason
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _trained(ROWS[row], COLUMNS[column], None, accumulates)
    except NotForThisLayer as error:
        return str(error)
    except Exception as error:
        return f"plain Keras: {words_of(error)}"


def _trained(row: Row, column: Column, mesh: Mesh | None, accumulates: bool) -> Values:
    """Trains the model of a cell, saves it and opens the file; returns all values to compare."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    x, y = data(row, _NUM_ROWS)
    settings: dict[str, Any] = {"gradient_accumulation_steps": 2} if accumulates else {}

    def compile_(model: Any) -> None:
        optimizer = column.optimizer(**settings)
        if isinstance(model, CompilesItself):
            model.compile(base=optimizer, size=0.5)
        else:
            weights = {"loss_weights": [0.5]} if column.model_class is CompilesItself else {}
            model.compile(optimizer, "mse", auto_scale_loss=False, **weights)

    def build() -> Any:
        model = _model(row, column, x)
        column.whole(model)
        if column.compiled_first:
            compile_(model)
        return model

    with policy(column.policy), contextlib.ExitStack() as scopes:
        if mesh is not None:
            scopes.enter_context(mesh.strategy().scope())
        model = build() if mesh is None else mesh.spread(build)
        column.split(model)
        # A pipeline is a new model, which has to be compiled.
        if not column.compiled_first or (mesh is not None and "pipe" in mesh.axes):
            compile_(model)
    arguments: dict[str, Any] = {"batch_size": _BATCH_SIZE, "verbose": 0}
    found: dict[str, Sequence[Any]] = {"predictions before": [model.predict(x, **arguments)]}
    history = model.fit(x, y, shuffle=False, epochs=2 if accumulates else 1, **arguments).history
    found |= {
        "losses": [history["loss"]],
        "weights": model.get_weights(),
        "slots": layer_api.values_of(model, layer_api.joined(model.optimizer.variables)),
        "predictions": [model.predict(x, **arguments)],
    }
    return {**found, **_of_files(model, x)}


def _of_files(model: Any, x: np.ndarray) -> Values:
    """Saves a model, opens the files in plain Keras, and returns their values; {} if a file cannot be opened."""
    with tempfile.TemporaryDirectory() as folder:
        path, weights = f"{folder}/model.keras", f"{folder}/model.weights.h5"
        model.save(path)
        model.save_weights(weights)
        try:
            opened = keras.saving.load_model(path, custom_objects={"CompilesItself": CompilesItself})
        except ValueError:
            # Keras cannot open every file that it writes, such as those of attentions with quantized layers inside.
            return {}
        # A model whose class has its own `compile` is opened without an optimizer.
        slots = getattr(getattr(opened, "optimizer", None), "variables", ())
        found: dict[str, Sequence[Any]] = {
            "file: weights": opened.get_weights(),
            "file: slots": [np.asarray(variable) for variable in slots],
            "file: predictions": [np.asarray(opened(x))],
        }
        opened.load_weights(weights)
        return found | {"weights file: predictions": [np.asarray(opened(x))]}


def _model(row: Row, column: Column, x: np.ndarray) -> Any:
    arguments = column.arguments(row.make)
    layer = row.make(**arguments or {})
    layer.name = TESTED
    if row.learns:
        layer.adapt(x)
    inputs = keras.Input(row.shape, dtype=str(x.dtype))
    if column.shape == "nested":
        inner = keras.Input(row.shape, dtype=str(x.dtype))
        y = keras.Model(inner, row.called(layer, inner), name="inner")(inputs)
    elif column.shape == "twice":
        y = keras.layers.Add()([row.called(layer, inputs), row.called(layer, keras.ops.flip(inputs, axis=1))])
    else:
        y = row.called(layer, inputs)
    y = keras.layers.Flatten()(y)
    # Scaled so that a step converges and rounding does not grow, whatever the number of features.
    y = keras.layers.Rescaling(y.shape[-1] ** -0.5)(y)
    return column.model_class(inputs, keras.layers.Dense(2, name="head")(y))


def difference_of(plain: Sequence[Any], ours: Sequence[Any]) -> float:
    if len(plain) != len(ours) or any(np.shape(a) != np.shape(b) for a, b in zip(plain, ours, strict=True)):
        return float("inf")
    difference = largest(plain, ours)
    return float("inf") if np.isnan(difference) else difference


def is_ours(error: BaseException) -> bool:
    """Returns True if this package has raised an error, with its own message."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if last.filename.startswith(_OURS):
        return (last.line or "").startswith("raise ")
    # AutoGraph re-raises errors, with the source locations in their text.
    places = [line for line in str(error).splitlines() if line.strip().startswith('File "')]
    return bool(places) and places[-1].strip().removeprefix('File "').startswith(_OURS)


def words_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    text = lines[-1] if "in user code" in lines[0] else " ".join(lines)
    return f"{type(error).__name__}: {text}"[:600]
