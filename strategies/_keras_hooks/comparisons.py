"""``strategy.check(model, data)``: trains on the mesh and on one device from the same weights, and compares.

Rank 0 trains a plain copy of the model, and reads the mesh's variables one by one. All ranks get its result.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.compared_training import ComparedTraining, Entry, Stage, State
from strategies._keras_hooks.layer_outputs import as_in_inference, find_unequal_layers, name_of
from strategies._keras_hooks.model_state import state_of_file
from strategies._keras_hooks.plain_copies import plain_copy, without_strategy
from strategies.collectives.descriptions import listed
from strategies.comparison import GRADIENT, LOG, OUTPUT, WEIGHT, ComparedValue, Comparison
from strategies.engine.engine import Engine, engine_of
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, variables_of
from strategies.saving.together import texts_of_job

_Result = TypeVar("_Result")

_GIVE = (
    "Give a function that makes and compiles the same model without a strategy, as in "
    "strategy.check(model, data, reference=make_model)."
)
_BATCH_SIZE = 32
_LIMIT = 1e-6
# The rounding of a sum over many numbers, in units of the last place.
_ULPS = 8
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
# Gradients are compared relative to their largest number, and are sums in which much cancels.
_GRADIENT_FACTOR = 10
# One rounding in each weight stands for the roundings of all operations.
_ROUNDINGS = 10


def compare(
    strategy: Any,
    model: Any,
    batches: Sequence[tuple[Any, Any, Any]],
    reference: Callable[[], Any] | None,
) -> Comparison:
    """Compares the training of a model with that of its plain copy; all processes call it.

    Args:
        strategy: the strategy of the model.
        model: a compiled and built model; it is afterwards as it was before.
        batches: the global batches, (x, y, sample_weight) each.
        reference: makes the plain model; None for a copy by the model's file.

    Raises:
        ValueError: the model cannot be compared, or the plain copy cannot be made; on all processes.
    """
    engine = engine_of(strategy)
    if engine is None or model.distribute_strategy is not strategy:
        raise ValueError(
            "A strategy checks models that were made in its scope. Make the model inside `with strategy.scope():`. "
            f"Received: {model.name!r}, made under {type(model.distribute_strategy).__name__}."
        )
    if not model.compiled or not model.built:
        raise ValueError(
            "A comparison with data trains the model: build and compile it first. Received: "
            f"{model.name!r}, {'built' if model.built else 'not built'}, "
            f"{'compiled' if model.compiled else 'not compiled'}."
        )
    for name, optimizer in vars(model).items():
        if isinstance(optimizer, keras.Optimizer) and not optimizer.built and optimizer is not model.optimizer:
            raise ValueError(
                f"A comparison restores the model's optimizers, and {name!r} has no state yet: call its "
                "`build(variables)` in the strategy's scope, or train a step, first."
            )
    return _Comparing(engine, strategy, model, batches, reference).run()


class _Comparing:
    """One comparison.

    Args:
        engine: the engine of the strategy.
        strategy: the strategy.
        model: the model on the mesh.
        batches: the batches.
        reference: makes the plain model.
    """

    def __init__(
        self,
        engine: Engine,
        strategy: Any,
        model: Any,
        batches: Sequence[tuple[Any, Any, Any]],
        reference: Callable[[], Any] | None,
    ) -> None:
        self._engine, self._strategy, self._model, self._batches = engine, strategy, model, batches
        self._reference = reference
        in_microbatches = int(getattr(model, "num_microbatches", 1)) > 1
        has_some_rows = strategy.num_replicas_in_sync > 1 or in_microbatches
        self._find_unequal = functools.partial(
            find_unequal_layers,
            is_split=has_some_rows or engine.parts.mesh.size > 1,
            has_some_rows=has_some_rows,
            in_microbatches=in_microbatches,
        )
        self._unequal = self._find_unequal(model)
        # Processes that own other stages compute other layers.
        self._mesh = ComparedTraining(model, batches, strategy.scope, of_layers=not engine.parts.crosses("pipe"))
        self._limit = _limit_of(model)

    def run(self) -> Comparison:
        """Trains, compares, and restores the model."""
        state_of(self._model)
        first = self._on_rank_0(self._mesh.state)
        plain = self._on_rank_0(lambda: self._make_plain(first))
        values: dict[tuple[int, str, str], np.ndarray] = {}
        rows: list[ComparedValue] = []
        with as_in_inference(self._unequal):
            theirs = None if plain is None else self._stages_of(plain, first)
            try:
                for stage in self._mesh.stages(lambda: self._restore(first)):
                    compare = functools.partial(self._compare, stage, plain, theirs, values)
                    rows += self._on_rank_0(compare) or []
            finally:
                self._restore(first)
                self._model.reset_metrics()
        rows = self._on_rank_0(lambda: self._with_noise(rows, plain, first, values)) or []
        called, sources = ([], []) if plain is None else (plain.called, plain.sources_of_loss())
        text = Comparison(rows, (), self._notes(), called, sources).to_json()
        return Comparison.from_json(texts_of_job(self._model, text)[0])

    def _on_rank_0(self, function: Callable[[], _Result]) -> _Result | None:
        """Runs a function on rank 0, which may read the mesh's variables; an error is one of all ranks."""
        text, caught, result = "", None, None
        try:
            result = drive(self._engine, variables_of(self._model), function)
        except Exception as error:
            text, caught = f"{type(error).__name__}: {error}", error
        texts = [each for each in texts_of_job(self._model, text) if each]
        if caught is not None:
            raise caught
        if texts:
            raise ValueError(f"Rank 0 could not compare the model with one device. {texts[0]}")
        return result

    def _restore(self, state: State | None) -> None:
        def load() -> str:
            if state is not None:
                self._mesh.set_state(state)
            return ""

        load_on_all(self._strategy, load, state_of(self._model))

    def _make_plain(self, first: State | None) -> ComparedTraining:
        """Makes the plain model."""
        left_out = [layer for layer in self._model._flatten_layers() if getattr(layer, "left_out_of_files", ())]
        if left_out and self._reference is None:
            arguments = listed(sorted({each for layer in left_out for each in layer.left_out_of_files}))
            raise ValueError(f"In a file {_names(left_out)} has no {arguments}, so that a copy trains without. {_GIVE}")
        try:
            plain = plain_copy(self._model) if self._reference is None else self._make_reference()
        except Exception as error:
            raise ValueError(f"The model has no plain copy. {_GIVE} {type(error).__name__}: {error}") from error
        if not plain.compiled:
            raise ValueError(f"The plain model {plain.name!r} is not compiled. {_GIVE}")
        optimizer = getattr(plain, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(plain.trainable_variables)
        training = ComparedTraining(plain, self._batches)
        _check_same_names(first, training)
        return training

    def _make_reference(self) -> Any:
        """Makes the program's plain model, and calls it, which builds what `build` of a subclass has not built."""
        if self._reference is None:
            raise RuntimeError("There is no function that makes the plain model.")
        plain = without_strategy(self._reference)
        if type(plain).call is not keras.Model.call:
            x = _rows(self._batches[0][0], 0, 1)
            without_strategy(lambda: plain(x))
        return plain

    def _stages_of(self, plain: ComparedTraining, state: State | None) -> Iterator[Stage]:
        """Yields the stages of the plain model, outside of the strategy's scope."""
        unequal = self._find_unequal(plain.model)
        stages = plain.stages(lambda: None if state is None else plain.set_state(state))
        while True:
            with as_in_inference(unequal):
                stage = without_strategy(lambda: next(stages, None))
            if stage is None:
                return
            yield stage

    def _compare(
        self,
        stage: Stage,
        plain: ComparedTraining | None,
        theirs: Iterator[Stage] | None,
        values: dict[tuple[int, str, str], np.ndarray],
    ) -> list[ComparedValue]:
        """Compares the current values with those of the plain model; keeps those that differ in `values`."""
        if plain is None or theirs is None:
            return []
        rows = []
        for entry, expected, value in _pairs(stage, self._mesh, next(theirs), plain):
            row = _row(stage.step, entry, expected, np.asarray(value), self._limit)
            rows.append(row)
            if not row.ok:
                values[stage.step, entry.kind, entry.name] = np.array(expected)
        return rows

    def _with_noise(
        self,
        rows: Sequence[ComparedValue],
        plain: ComparedTraining | None,
        first: State | None,
        values: Mapping[tuple[int, str, str], np.ndarray],
    ) -> list[ComparedValue]:
        """Returns rows with larger limits where one rounding in the first weights changes the plain model's values."""
        if plain is None or first is None or not values:
            return list(rows)
        names = {name for name, entry in plain.state_entries().items() if entry.kind == WEIGHT}
        moved = {name: _next(value) if name in names else value for name, value in first.named.items()}
        noise: dict[tuple[int, str, str], float] = {}
        for stage in self._stages_of(plain, State(moved, first.seeds)):
            for entry, value, _ in _pairs(stage, plain, stage, plain):
                key = (stage.step, entry.kind, entry.name)
                if key in values:
                    noise[key] = _row(stage.step, entry, values[key], np.asarray(value), 0.0).difference
        return [_with_limit(row, _ROUNDINGS * noise.get((row.step, row.kind, row.name), 0.0)) for row in rows]

    def _notes(self) -> list[str]:
        notes = []
        if self._unequal.draw:
            notes.append(
                f"random numbers of {_names(self._unequal.draw)}, which each replica or shard draws for itself: they "
                "computed as in inference."
            )
        if self._unequal.normalize:
            notes.append(
                f"statistics of {_names(self._unequal.normalize)}, which normalize by the rows of one replica or "
                "micro-batch: they computed as in inference. BatchNormalization(synchronized=True) normalizes by the "
                "rows of all replicas."
            )
        return notes


def _names(layers: Sequence[Any]) -> str:
    return listed([repr(name_of(layer)) for layer in layers], at_most=4)


def batches_of(data: Any, steps: int) -> list[tuple[Any, Any, Any]]:
    """Returns the first batches of the data."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number from 1. Received: steps={steps!r}.")
    if isinstance(data, tuple):
        count = len(keras.tree.flatten(data)[0])
        size = max(1, min(_BATCH_SIZE, count // steps))
        found: Iterable[Any] = (_rows(data, begin, begin + size) for begin in range(0, count, size))
    elif isinstance(data, keras.utils.PyDataset):
        found = (data[i] for i in range(len(data)))
    elif isinstance(data, (tf.data.Dataset, list, Iterator)):
        found = data
    else:
        raise ValueError(
            "data must be arrays (x, y) or (x, y, sample_weight), a tf.data.Dataset, a PyDataset, a generator or a "
            "list of global batches. For findings without training, give a batch of inputs as "
            f"strategy.check(model, inputs=x). Received: data of type {type(data).__name__}."
        )
    batches = [keras.utils.unpack_x_y_sample_weight(batch) for batch in itertools.islice(found, steps)]
    if len(batches) < steps:
        raise ValueError(f"The data have fewer batches than steps. Received: {len(batches)} batches, steps={steps}.")
    return batches


def _rows(data: Any, begin: int, end: int) -> Any:
    return keras.tree.map_structure(lambda array: None if array is None else array[begin:end], data)


def _limit_of(model: Any) -> float:
    """Returns the difference that rounding explains, relative to the scale of a value, by the lowest precision."""
    dtypes = {str(layer.compute_dtype) for layer in model._flatten_layers()}
    return max([_LIMIT, *(_ULPS * _EPSILON[dtype] for dtype in dtypes if dtype in _EPSILON)])


def _check_same_names(state: State | None, plain: ComparedTraining) -> None:
    """Refuses a plain model with other variables than the mesh's."""
    shapes = {} if state is None else {name: value.shape for name, value in state.named.items()}
    theirs = {name: np.shape(value) for name, value in state_of_file(plain.model).items()}
    lines = [
        f"{name}: {shapes.get(name, 'not')} on the mesh, {theirs.get(name, 'not')} in the plain model"
        for name in sorted(shapes.keys() | theirs.keys())
        if shapes.get(name) != theirs.get(name)
    ]
    if lines:
        raise ValueError(
            "The plain model has other variables than the mesh's; its optimizers, except model.optimizer, have to be "
            f"built, too. Received: {listed(lines)}."
        )


def _pairs(
    stage: Stage, training: ComparedTraining, theirs: Stage, plain: ComparedTraining
) -> Iterator[tuple[Entry, Any, Any]]:
    """Yields what is compared at a stage, with its value in the plain model and on the mesh."""
    for (kind, name), expected in theirs.values.items():
        if (kind, name) in stage.values or kind == LOG:
            yield (
                Entry(kind, name, name.partition("#")[0] if kind == OUTPUT else ""),
                expected,
                stage.values.get((kind, name), np.nan),
            )
    entries = plain.entries(theirs)
    expected_state, state = (state_of_file(each.model) if entries else {} for each in (plain, training))
    for name, entry in entries.items():
        yield entry, expected_state[name], state[name]


def _row(step: int, entry: Entry, expected: Any, value: Any, limit: float) -> ComparedValue:
    one, other = (np.asarray(each).astype("float64") for each in (expected, value))
    is_gradient = entry.kind == GRADIENT
    difference = np.inf
    if one.shape == other.shape:
        scale = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        scale = (scale or 1.0) if is_gradient else max(1.0, scale)
        with np.errstate(invalid="ignore"):
            apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other) / scale)
        difference = float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))
    return ComparedValue(
        step, entry.kind, entry.name, entry.layer, difference, _GRADIENT_FACTOR * limit if is_gradient else limit
    )


def _with_limit(row: ComparedValue, limit: float) -> ComparedValue:
    return dataclasses.replace(row, limit=max(row.limit, limit))


def _next(value: np.ndarray) -> np.ndarray:
    return np.nextafter(value, np.inf, dtype=value.dtype) if value.dtype.kind == "f" else value
