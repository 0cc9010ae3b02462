"""``strategy.check(model, data)``: trains on the mesh and on one device from the same weights, and compares.

Rank 0 trains a plain copy of the model, and reads the mesh's variables one by one. All ranks get its result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from strategies._keras_hooks.compared_batches import Batch, rows_of
from strategies._keras_hooks.compared_training import ComparedTraining, Stage, State
from strategies._keras_hooks.compared_values import compared, differing_names, limit_of, pairs, rounded_away
from strategies._keras_hooks.layer_outputs import as_in_inference, find_unequal_layers, name_of
from strategies._keras_hooks.plain_copies import compile_alike, plain_copy, without_strategy
from strategies.collectives.descriptions import listed
from strategies.comparison import WEIGHT, ComparedValue, Comparison
from strategies.engine.engine import Engine, engine_of
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, variables_of
from strategies.saving.together import texts_of_job

_Result = TypeVar("_Result")

_GIVE = (
    "Give a function that makes and compiles the same model without a strategy, as in "
    "strategy.check(model, data, reference=make_model)."
)
# One rounding in each weight stands for the roundings of all operations.
_ROUNDINGS = 10


def compare(
    strategy: Any,
    model: Any,
    batches: Sequence[Batch],
    reference: Callable[[], Any] | None,
) -> Comparison:
    """Compares the training of a model with that of its plain copy; all processes call it.

    Args:
        strategy: the strategy of the model.
        model: a compiled and built model; it is afterwards as it was before.
        batches: the global batches.
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
        batches: Sequence[Batch],
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
        self._limit = limit_of(model)

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
            raise ValueError(
                f"In a file {self._names(left_out)} has no {arguments}, so that a copy trains without. {_GIVE}"
            )
        try:
            plain = self._make_copy() if self._reference is None else self._make_reference()
        except Exception as error:
            raise ValueError(f"The model has no plain copy. {_GIVE} {type(error).__name__}: {error}") from error
        if not plain.compiled:
            raise ValueError(f"The plain model {plain.name!r} is not compiled. {_GIVE}")
        optimizer = getattr(plain, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(plain.trainable_variables)
        training = ComparedTraining(plain, self._batches)
        differing = differing_names(first, training)
        if differing and self._reference is None:
            raise ValueError(
                "The model's file gives another model, as that of a model with LoRA adapters, which has merged them. "
                f"{_GIVE} Received: {differing}."
            )
        if differing:
            raise ValueError(
                "The plain model has other variables than the mesh's; its optimizers, except model.optimizer, have to "
                f"be built, too. Received: {differing}."
            )
        return training

    def _make_copy(self) -> Any:
        plain = plain_copy(self._model)
        without_strategy(lambda: compile_alike(plain, self._model))
        return plain

    def _make_reference(self) -> Any:
        """Makes the program's plain model, and calls it, which builds what `build` of a subclass has not built."""
        if self._reference is None:
            raise RuntimeError("There is no function that makes the plain model.")
        plain = without_strategy(self._reference)
        if type(plain).call is not keras.Model.call:
            x = rows_of(self._batches[0].x, 0, 1)
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
        for entry, expected, value in pairs(stage, self._mesh, next(theirs), plain):
            row = compared(stage.step, entry, expected, np.asarray(value), self._limit)
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
        weights = {name: entry for name, entry in plain.state_entries().items() if entry.kind == WEIGHT}
        noise: dict[tuple[int, str, str], float] = {}
        for stage in self._stages_of(plain, rounded_away(first, weights)):
            for entry, value, _ in pairs(stage, plain, stage, plain):
                key = (stage.step, entry.kind, entry.name)
                if key in values:
                    noise[key] = compared(stage.step, entry, values[key], np.asarray(value), 0.0).difference
        limits = {key: _ROUNDINGS * each for key, each in noise.items()}
        return [
            dataclasses.replace(row, limit=max(row.limit, limits.get((row.step, row.kind, row.name), 0.0)))
            for row in rows
        ]

    def _names(self, layers: Sequence[Any]) -> str:
        return listed([repr(name_of(layer, self._model)) for layer in layers], at_most=4)

    def _notes(self) -> list[str]:
        notes = []
        if self._unequal.draw:
            notes.append(
                f"random numbers of {self._names(self._unequal.draw)}, which each replica or shard draws for itself: "
                "they computed as in inference."
            )
        if self._unequal.normalize:
            notes.append(
                f"statistics of {self._names(self._unequal.normalize)}, which normalize by the rows of one replica or "
                "micro-batch: they computed as in inference. BatchNormalization(synchronized=True) normalizes by the "
                "rows of all replicas."
            )
        return notes
