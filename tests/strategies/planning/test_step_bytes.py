"""Bytes of a step, against published ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from strategies.planning import Layout, Transformer, step_bytes
from strategies.planning.layout import Shard
from strategies.planning.step_bytes import activation_bytes_of_layer, activation_bytes_of_layers
from tests.strategies.planning.published import ACTIVATIONS, STATES

GIB = 2**30


def layouts_of(case: Any) -> Iterator[tuple[Layout, float]]:
    """Yields the layouts of a published model, and its GiB with each."""
    _, stages, rows, chunks, plain, selective = case
    layout = Layout(1, stages, 8, rows, chunks)
    yield layout, plain
    yield dataclasses.replace(layout, recompute="selective", sequence_parallel=True), selective


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations_are_those_of_the_paper(case: Any) -> None:
    for layout, expected in layouts_of(case):
        assert activation_bytes_of_layers(case[0], layout) / GIB == pytest.approx(expected, abs=0.006)


def test_state_is_that_of_the_paper() -> None:
    for (model, stages, *_), expected in zip(ACTIVATIONS, STATES, strict=True):
        # The paper leaves out tables, biases and norms.
        blocks = 12 * model.num_layers * model.hidden_size**2 / (8 * stages)
        assert 18 * blocks / GIB == pytest.approx(expected, abs=0.01)
        found = step_bytes(model, Layout(1, stages, 8))
        table = model.vocabulary_size * model.hidden_size / 8
        own = found.weights + found.gradients + found.slots
        assert own == pytest.approx(18 * (blocks + table), rel=1e-3)


def test_accumulated_gradients_are_counted_with_the_slots() -> None:
    model = Transformer(4, 256, 4)
    one, several = (step_bytes(model, Layout(2), number) for number in (1, 4))
    assert several.slots == one.slots * 12 / 8
    assert step_bytes(model, Layout(2, shard="optimizer"), 4).slots == several.slots / 2
    # A pipeline adds the gradients of its micro-batches to the gradients.
    assert step_bytes(model, Layout(num_stages=2), 4) == step_bytes(model, Layout(num_stages=2))


def test_recomputed_stages_keep_their_inputs_and_one_stage() -> None:
    model = Transformer(8, 256, 4)
    layout = Layout(num_stages=4, recompute="full")
    block = activation_bytes_of_layer(model, Layout())
    numbers = model.sequence_length * model.hidden_size
    logits = 4 * numbers * (1 + model.vocabulary_size / model.hidden_size)
    assert step_bytes(model, layout).activations == pytest.approx(4 * 2 * numbers + 2 * block + logits)


def test_the_last_stage_joins_the_logits_of_shards() -> None:
    model = Transformer(2, 256, 4, vocabulary_size=100_000)
    logits = 4 * model.sequence_length * model.vocabulary_size
    assert step_bytes(model, Layout(1, 2, 4)).activations > logits > step_bytes(model, Layout(1, 1, 4)).activations


@pytest.mark.parametrize(
    ("shard", "divided"), [(None, ""), ("optimizer", "slots"), ("weights", "weights gradients slots")]
)
def test_shards_divide_what_they_name(shard: Shard, divided: str) -> None:
    model = Transformer(4, 256, 4)
    whole, found = (step_bytes(model, Layout(8, shard=each)) for each in (None, shard))
    for kind in ("weights", "gradients", "slots"):
        assert getattr(found, kind) == getattr(whole, kind) / (8 if kind in divided else 1)
    assert (found.gathered > 0) == (shard == "weights")
    assert found.activations == whole.activations
