"""Tests of the benchmarks; each is a package in `benchmarks/`, which is put on the path here. Nothing is timed."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

if str(BENCHMARKS) not in sys.path:
    sys.path.insert(0, str(BENCHMARKS))
