"""Pipelines of datasets in which rows can be chosen before they are mapped."""

from __future__ import annotations

import pytest

from strategies.batches.row_plans import RowPlan, plan_rows


@pytest.mark.parametrize(
    ("steps", "batch", "source"),
    [
        ("batch map range", 0, 2),
        ("prefetch batch map map map tensor_slice", 1, 5),
        ("options prefetch repeat batch map shuffle range", 3, 5),
        ("take batch prefetch map options map assert_cardinality range", 1, 6),
        ("batch map stateful_map range", 0, 2),
        ("batch prefetch map shuffle map range", 0, 3),
    ],
)
def test_rows_are_chosen_before_the_last_run_of_maps(steps: str, batch: int, source: int) -> None:
    assert plan_rows([step.replace("_map", " map") for step in steps.split()]) == RowPlan(batch, source)


@pytest.mark.parametrize(
    ("steps", "batch", "source"),
    [("batch tensor_slice", 0, 1), ("prefetch repeat batch options prefetch tensor_slice", 2, 5)],
)
def test_of_arrays_they_are_slices(steps: str, batch: int, source: int) -> None:
    assert plan_rows(steps.split()) == RowPlan(batch, source, of_arrays=True)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("batch range", "no map"),
        ("batch shuffle tensor_slice", "no map"),
        ("tensor_slice", "no map"),
        ("batch take tensor_slice", "no map"),
        ("batch shuffle map range", "`shuffle` stands between"),
        ("batch take map range", "`take` stands between"),
        ("batch batch map range", "`batch` stands between"),
        ("map batch map range", "`map` comes after the batch"),
        ("prefetch stateful_map batch map range", "a stateful map comes after the batch"),
        ("padded_batch map range", "not made by `batch`"),
        ("batch stateful_map map range", "stateless"),
    ],
)
def test_and_where_they_cannot_it_says_why(steps: str, reason: str) -> None:
    plan = plan_rows([step.replace("_map", " map") for step in steps.split()])
    assert isinstance(plan, str)
    assert reason in plan
