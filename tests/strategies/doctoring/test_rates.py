"""The doctor's all-reduces: they cover every dtype that training sums, and a wrong sum is reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from strategies.doctoring.rates import measure


class Group:
    """Two processes; the sums of one type may be wrong."""

    rank, num_processes = 1, 2

    def __init__(self, wrong: tf.DType | None = None) -> None:
        self.wrong = wrong
        self.summed: list[tuple[str, int]] = []

    def sum(self, values: list[Any]) -> list[Any]:
        self.summed.append((values[0].dtype.name, values[0].shape[0]))
        return [value + (2 if value.dtype == self.wrong else 1) for value in values]


def strategy(group: Group) -> Any:
    devices = ["/job:worker/replica:0/task:1/device:GPU:0"]
    extended = SimpleNamespace(engine=SimpleNamespace(process_group=group), worker_devices=devices)
    return SimpleNamespace(extended=extended, communication="NCCL")


def test_each_type_is_summed() -> None:
    group = Group()
    found = measure(strategy(group), 0.5)
    assert list(found) == [
        "implementation",
        "devices",
        "latency in microseconds",
        "GB/s",
        "processor share",
        "GB/s of 0.5 MB",
    ]
    assert 0 < found["processor share"] <= 1
    assert (found["implementation"], found["devices"]) == ("NCCL", ["/device:GPU:0"])
    assert list(found["GB/s"]) == ["0.1 MB"]
    assert list(found["GB/s of 0.5 MB"]) == ["float32", "bfloat16", "int32", "int64"]
    # Traced once each.
    assert group.summed == [
        ("float32", 1),
        ("float32", 25_000),
        ("float32", 125_000),
        ("bfloat16", 250_000),
        ("int32", 125_000),
        ("int64", 62_500),
    ]


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.int32])
def test_a_wrong_sum_is_named(dtype: tf.DType) -> None:
    with pytest.raises(ValueError, match=f"the sum of {dtype.name} over all ranks is 4, expected 3"):
        measure(strategy(Group(dtype)), 0.1)
