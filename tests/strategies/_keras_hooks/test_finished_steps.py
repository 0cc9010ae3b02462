"""Finished steps, from the arguments of callbacks."""

from __future__ import annotations

from strategies._keras_hooks.finished_steps import finished_steps


def test_the_last_execution_of_an_epoch_may_be_shorter() -> None:
    assert [finished_steps({"steps": 5}, batch) for batch in (1, 3, 5)] == [2, 4, 5]


def test_the_number_of_steps_may_be_unknown() -> None:
    assert [finished_steps(params, 3) for params in (None, {}, {"steps": None})] == [4, 4, 4]
