"""Schedules that a user's function makes are checked for each number of micro-batches. Their page trains with one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import keras_ext
from keras_ext.pipeline.arguments import check, schedule_table
from strategies.schedules import SCHEDULES, Action, Kind, Schedule


def test_a_function_makes_the_schedule_of_each_number_of_micro_batches() -> None:
    for number in (1, 2, 5):
        assert schedule_table(SCHEDULES["gpipe"], 3, 3, number) == schedule_table("gpipe", 3, 3, number)
    # On one device, each stage is scheduled as if it had a device of its own, as with names.
    assert schedule_table(SCHEDULES["gpipe"], 1, 3, 2) == schedule_table("gpipe", 1, 3, 2)


def _reversed(num_stages: int, num_microbatches: int) -> Schedule:
    kinds = (Kind.BACKWARD, Kind.FORWARD)
    devices = [tuple(Action(k, kind, i) for kind in kinds for i in range(num_microbatches)) for k in range(num_stages)]
    return Schedule("reversed", num_stages, num_microbatches, tuple(devices))


REFUSED: dict[str, Callable[[int, int], Schedule]] = {
    r"'reversed' cannot run: on device 0, 0B0 waits for 0F0.*>0B0<": _reversed,
    "asked for 2 stages, on a device each, and 4 micro-batches.*of 2 devices, 4 stages": SCHEDULES["zb_v"],
    "of 3 devices, 3 stages and 4 micro-batches": lambda stages, number: SCHEDULES["1f1b"](stages + 1, number),
    "returns a keras_ext.Schedule. Received: 'gpipe' for 2": lambda *_: "gpipe",  # type: ignore[dict-item]
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_table_that_does_not_suit_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match=re.compile(message, flags=re.DOTALL)):
        schedule_table(REFUSED[message], 2, 2, 4)


def test_an_unknown_name_is_refused_with_all_names() -> None:
    check(SCHEDULES["gpipe"], num_microbatches=1)
    with pytest.raises(ValueError, match=r"'gpipe'.*or a function that makes one\. Received: schedule='wave'"):
        keras_ext.PipelineModel([], schedule="wave")
