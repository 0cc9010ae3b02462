"""``strategy.check(model, data)``: trains on the mesh and on one device from the same weights, and compares.

Rank 0 trains a plain copy of the model, and reads the mesh's variables one by one. All ranks get its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strategies._keras_hooks.compared_batches import Batch
from strategies._keras_hooks.compared_records import Entry, Recorded, Stage, State
from strategies._keras_hooks.compared_references import (
    FindUnequal,
    MeshReference,
    PlainReference,
    Reference,
    on_rank_0,
    records_layers,
    restore,
)
from strategies._keras_hooks.compared_training import ComparedTraining
from strategies._keras_hooks.compared_values import compared, limit_of, pairs, rounded_away
from strategies._keras_hooks.layer_outputs import UnequalLayers, as_in_inference, find_unequal_layers, name_of
from strategies.collectives.descriptions import listed
from strategies.comparison import WEIGHT, ComparedValue, Comparison
from strategies.saving.restoring import state_of
from strategies.saving.together import texts_of_job

# One rounding in each weight stands for the roundings of all operations.
_ROUNDINGS = 10

_Key = tuple[int, Entry]
_Values = Mapping[_Key, np.ndarray]


def compare(
    model: Any,
    batches: Sequence[Batch],
    make: Callable[[], Any] | None,
    against: Any = None,
) -> Comparison:
    """Compares the training of a model with that of its plain copy; all processes call it.

    Args:
        model: a compiled model under one of our strategies; it is afterwards as it was before.
        batches: the global batches.
        make: makes the plain model, or the one under `against`; None for a copy by the model's file.
        against: the strategy of another mesh, with which this one is compared in place of one device.

    Raises:
        ValueError: the model cannot be compared, or the plain copy cannot be made; on all processes.
    """
    strategy = model.distribute_strategy
    training = ComparedTraining(model, batches, strategy.scope, of_layers=records_layers(model))
    state_of(model)
    first = on_rank_0(model, training.state)
    reference: Reference
    if against is None:
        reference = PlainReference(model, first, batches, make)
    elif make is None:
        raise ValueError(
            "To compare with another mesh, give a function that makes, splits and compiles the model; it is called in "
            "the other strategy's scope: strategy.check(model, data, against=..., reference=make_model)."
        )
    else:
        reference = MeshReference(against, first, batches, make)
    recorded = reference.training
    find_unequal = _finder([model] if recorded is None or against is None else [model, recorded.model])
    found, expected = _rows(training, reference, first, find_unequal)
    rows = _with_noise(model, reference, first, find_unequal, found, expected)
    called, sources = ([], []) if recorded is None else (recorded.called, recorded.sources_of_loss())
    notes = _notes(model, find_unequal(model))
    if recorded is not None and not called:
        notes.append("outputs of layers: the model cannot be called on the first part of a batch.")
    text = Comparison(rows, (), notes, called, sources).to_json()
    return Comparison.from_json(texts_of_job(model, text)[0])


def _finder(models: Sequence[Any]) -> FindUnequal:
    """Returns the function that finds the layers that compute as in inference.

    Args:
        models: the model on the mesh, and that on the other mesh.
    """
    on = [model.distribute_strategy for model in models]
    in_microbatches = any(int(getattr(model, "num_microbatches", 1)) > 1 for model in models)
    has_some_rows = in_microbatches or any(each.num_replicas_in_sync > 1 for each in on)
    return functools.partial(
        find_unequal_layers,
        is_split=has_some_rows or any(each.mesh.size > 1 for each in on),
        has_some_rows=has_some_rows,
        in_microbatches=in_microbatches,
    )


def _rows(
    training: ComparedTraining, reference: Reference, first: State | None, find_unequal: FindUnequal
) -> tuple[dict[_Key, ComparedValue], _Values]:
    """Trains both, and returns on rank 0 the rows, and the expected values that differ; restores the model."""
    rows: dict[_Key, ComparedValue] = {}
    expected: dict[_Key, np.ndarray] = {}
    limit = limit_of(training.model)

    def compare(stage: Stage, recorded: Recorded | None) -> None:
        for entry, value, own in () if recorded is None else pairs(training, stage, recorded):
            row = compared(stage.step, entry, value, np.asarray(own), limit)
            rows[stage.step, entry] = row
            if not row.ok:
                expected[stage.step, entry] = np.array(value)

    try:
        unequal = find_unequal(training.model)
        with as_in_inference(unequal), contextlib.closing(reference.stages(first, find_unequal)) as theirs:
            for stage in training.stages(lambda: restore(training, first)):
                on_rank_0(training.model, functools.partial(compare, stage, next(theirs)))
    finally:
        restore(training, first)
    return rows, expected


def _with_noise(
    model: Any,
    reference: Reference,
    first: State | None,
    find_unequal: FindUnequal,
    rows: Mapping[_Key, ComparedValue],
    expected: _Values,
) -> list[ComparedValue]:
    """Returns rows with larger limits where one rounding in the first weights changes the reference's values."""
    if not any(texts_of_job(model, "differs" if expected else "")):
        return list(rows.values())
    moved = None
    if first is not None and reference.training is not None:
        entries = reference.training.state_entries()
        moved = rounded_away(first, {entry.key for entry in entries if entry.kind == WEIGHT})
    # By the same measure as the difference itself.
    limit = limit_of(model)
    limits: dict[_Key, float] = {}
    with contextlib.closing(reference.stages(moved, find_unequal)) as stages:
        for recorded in filter(None, stages):
            for entry, value in recorded.values.items():
                key = (recorded.step, entry)
                if key in expected:
                    limits[key] = _ROUNDINGS * compared(recorded.step, entry, expected[key], value, limit).difference
    # A value that rounding makes infinite says nothing about the mesh: it stays a difference.
    finite = {key: limit for key, limit in limits.items() if math.isfinite(limit)}
    return [dataclasses.replace(row, limit=max(row.limit, finite.get(key, 0.0))) for key, row in rows.items()]


def _notes(model: Any, unequal: UnequalLayers) -> list[str]:
    def names(layers: Sequence[Any]) -> str:
        return listed([repr(name_of(layer, model)) for layer in layers], at_most=4)

    notes = []
    if unequal.draw:
        notes.append(
            f"random numbers of {names(unequal.draw)}, which each replica or shard draws for itself: they computed as "
            "in inference."
        )
    if unequal.normalize:
        notes.append(
            f"statistics of {names(unequal.normalize)}, which normalize by the rows of one replica or micro-batch: "
            "they computed as in inference. BatchNormalization(synchronized=True) normalizes by the rows of all "
            "replicas."
        )
    return notes
