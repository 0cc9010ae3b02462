"""A one-line description of the machine and the software of a measurement."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path


def describe(packages: Iterable[str] = ("tensorflow", "keras", "numpy")) -> str:
    """Returns processor, cores, current load, and the versions of Python and of `packages`."""
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, load averages {load}; "
        f"Python {platform.python_version()}, {versions}; {platform.platform()}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
