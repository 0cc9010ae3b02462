"""The function that each process of this benchmark runs; only there TensorFlow is imported."""

from __future__ import annotations

from pathlib import Path

from harness.workers import Report
from mirrored.workload import Workload


def run(name: str, workload: Workload, folder: Path, report: Report) -> None:
    """Traces the strategy of that name."""
    from overlap import tracing

    tracing.run(name, workload, folder, report)
