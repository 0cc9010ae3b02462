"""The doctor counts cores and threads, and names GPUs that XLA does not support."""

import pytest

from strategies.doctoring import machine
from strategies.doctoring.machine import check_machine
from strategies.doctoring.report import Report
from strategies.topology.cluster import Cluster


def test_threads_for_all_cores_in_each_process_are_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    report = Report(as_json=True)
    check_machine(Cluster(world_size=2, local_size=2, source="HOROVOD"), report)
    assert "TF_NUM_INTRAOP_THREADS=2" in report.found["hints"][0]
    assert report.close() == 0


def test_gpus_for_which_xla_cannot_compile_are_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "reason_against_xla", lambda: "XLA cannot compile for this GPU")
    report = Report(as_json=True)
    check_machine(Cluster(), report)
    assert report.found["hints"] == [
        "XLA cannot compile for this GPU. Models run without XLA, unless `jit_compile=True`, which ends the process."
    ]
