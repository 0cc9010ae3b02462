"""Bytes of variables by device, and the peaks that GPU allocators record."""

from __future__ import annotations

import pytest
import tensorflow as tf

import strategies
from keras_ext.memory import MemoryReport
from strategies.replica import memory


def test_peaks_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/job:worker/replica:0/task:1/device:GPU:{i}" for i in range(2)]
    reset: list[str] = []
    monkeypatch.setattr(memory, "list_own_devices", lambda kind: names if kind == "GPU" else [])
    monkeypatch.setattr(
        tf.config.experimental, "get_memory_info", lambda name: {"current": 1, "peak": 1000 + int(name[-1])}
    )
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", reset.append)
    assert strategies.peak_bytes_per_device() == {"GPU:0": 1000, "GPU:1": 1001}
    assert reset == []
    strategies.peak_bytes_per_device(reset=True)
    assert reset == ["GPU:0", "GPU:1"]


def test_cpus_have_none() -> None:
    assert strategies.peak_bytes_per_device(reset=True) == {}


def test_a_report_has_peaks_where_there_are_some() -> None:
    rows = str(MemoryReport({"CPU:0": 4, "GPU:0": 1200}, {"GPU:0": 8}, {"GPU:0": 5000})).splitlines()
    assert [row.split() for row in rows] == [
        ["device", "weights", "optimizer", "together", "peak"],
        ["CPU:0", "4", "0", "4", "-"],
        ["GPU:0", "1,200", "8", "1,208", "5,000"],
    ]
    *rows, last = str(MemoryReport({"CPU:0": 4}, {})).splitlines()
    assert [row.split() for row in rows] == [["device", "weights", "optimizer", "together"], ["CPU:0", "4", "0", "4"]]
    assert last == "No peaks: TensorFlow's allocator keeps them on GPUs only."


def test_a_report_has_a_formula_and_processes_where_there_are_some() -> None:
    report = MemoryReport(
        {"rank 0 CPU:0": 100, "rank 1 CPU:0": 100},
        {"rank 0 CPU:0": 212, "rank 1 CPU:0": 200},
        gradients={"rank 0 CPU:0": 100, "rank 1 CPU:0": 100},
        gathered={"rank 0 CPU:0": 400, "rank 1 CPU:0": 400},
        processes={"rank 1": (2_000_000, 3_000_000), "rank 0": (1_000_000, 5_400_000)},
        formula=("16 / 4 = 4 bytes a parameter", 400),
    )
    assert report.together == {"rank 0 CPU:0": 812, "rank 1 CPU:0": 800}
    assert str(report).splitlines() == [
        "device        weights  gradients  optimizer  gathered  together",
        "rank 0 CPU:0      100        100        212       400       812",
        "rank 1 CPU:0      100        100        200       400       800",
        "No peaks: TensorFlow's allocator keeps them on GPUs only.",
        "Formula: 16 / 4 = 4 bytes a parameter, 400 a device; held without gathered weights: +0.0 % to +3.0 %.",
        "Resident memory of rank 0: 1 MB, at most 5 MB.",
        "Resident memory of rank 1: 2 MB, at most 3 MB.",
    ]
