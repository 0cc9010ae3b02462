"""Tests of the benchmarks; each is a package in `benchmarks/`, which is added to the path here. Nothing is timed."""

import subprocess
import sys
from pathlib import Path

from tests.processes import python

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))


def run_benchmark(name: str, *arguments: str, program: str = "main") -> subprocess.CompletedProcess[str]:
    """Runs a benchmark like a user; the calling test has the tighter timeout."""
    return subprocess.run(
        python(str(BENCHMARKS / name / f"{program}.py"), *arguments),
        cwd=BENCHMARKS.parent,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
