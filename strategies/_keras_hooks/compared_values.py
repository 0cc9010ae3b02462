"""Compares what a model computed on a mesh with what it computed on one device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from strategies._keras_hooks.compared_records import Entry, Recorded, Stage, State
from strategies._keras_hooks.compared_training import ComparedTraining
from strategies._keras_hooks.model_state import named_state
from strategies.collectives.descriptions import listed
from strategies.comparison import GRADIENT, LOG, ComparedValue
from strategies.saving.write_items import shape_and_dtype

_LIMIT = 1e-6
# The rounding of a sum over many numbers, in units of the last place.
_ULPS = 8
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
# Gradients are compared relative to their largest number, and are sums in which much cancels.
_GRADIENT_FACTOR = 10


def limit_of(model: Any) -> float:
    """Returns the difference that rounding explains, relative to the scale of a value, by the lowest precision."""
    dtypes = {str(layer.compute_dtype) for layer in model._flatten_layers()}
    return max([_LIMIT, *(_ULPS * _EPSILON[dtype] for dtype in dtypes if dtype in _EPSILON)])


def differing_names(state: State | None, other: ComparedTraining) -> str:
    """Returns the variables that only one of the models has, or that have other shapes, as text; "" if there are none.

    Args:
        state: the state of the model on the mesh.
        other: the training of the other model.
    """
    shapes = {} if state is None else {name: value.shape for name, value in state.named.items()}
    theirs = {name: shape_and_dtype(value)[0] for name, value in named_state(other.model).items()}
    lines = [
        f"{name}: {shapes.get(name, 'not')} on the mesh, {theirs.get(name, 'not')} in the other model"
        for name in sorted(shapes.keys() | theirs.keys())
        if shapes.get(name) != theirs.get(name)
    ]
    return listed(lines) if lines else ""


def pairs(training: ComparedTraining, stage: Stage, recorded: Recorded) -> Iterator[tuple[Entry, Any, Any]]:
    """Yields what is compared at a stage, with its value in the reference and on the mesh.

    Args:
        training: the training on the mesh.
        stage: its stage.
        recorded: the same stage of the reference.
    """
    state = named_state(training.model) if stage.has_gradients or stage.has_state else {}
    for entry, expected in recorded.values.items():
        value = state[entry.key] if entry.key else stage.values.get((entry.kind, entry.name))
        # Outputs of layers are compared where both can be recorded.
        if value is not None or entry.kind == LOG:
            yield entry, expected, np.nan if value is None else value


def compared(step: int, entry: Entry, expected: Any, value: Any, limit: float) -> ComparedValue:
    """Returns the row of a value.

    Args:
        step: the number of updates so far.
        entry: what is compared.
        expected: the value on one device.
        value: the value on the mesh.
        limit: as returned by :func:`limit_of`.
    """
    one, other = (np.asarray(each).astype("float64") for each in (expected, value))
    if entry.kind != GRADIENT:
        difference = _difference(one, other, smallest_scale=1.0)
    elif limit > _LIMIT and one.shape == other.shape and np.isfinite(one).all() and np.isfinite(other).all():
        # In half precision single numbers are rounded coarsely: their roundings average out in the norm.
        difference = float(np.linalg.norm(one - other) / (np.linalg.norm(one) or 1.0))
    else:
        limit *= _GRADIENT_FACTOR
        difference = _difference(one, other, smallest_scale=0.0)
    return ComparedValue(step, entry.kind, entry.name, entry.layer, difference, limit)


def _difference(one: np.ndarray, other: np.ndarray, smallest_scale: float) -> float:
    """Returns the largest difference in units of the largest number of `one`; infinity between other shapes or NaN."""
    if one.shape != other.shape:
        return float("inf")
    scale = max(smallest_scale, float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))) or 1.0
    with np.errstate(invalid="ignore"):
        is_equal = (one == other) | (np.isnan(one) & np.isnan(other))
        apart = np.where(is_equal, 0.0, np.abs(one - other) / scale)
    return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))


def rounded_away(state: State, names: Collection[str]) -> State:
    """Returns a state whose weights are the next larger numbers: one rounding, which stands for those of all steps.

    Args:
        state: the first state.
        names: the weights, by their names in a file.
    """
    named = {name: _next(value) if name in names else value for name, value in state.named.items()}
    return State(named, state.seeds)


def _next(value: np.ndarray) -> np.ndarray:
    return np.nextafter(value, np.inf, dtype=value.dtype) if value.dtype.kind == "f" else value
