"""The sentence about date, machine and versions in the tables of the documentation."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform


def measured_today() -> str:
    """Returns "Measured on <date>: <processors>; <versions>."."""
    versions = ", ".join(f"{title} {importlib.metadata.version(title.lower())}" for title in ("TensorFlow", "Keras"))
    cores = f"{len(os.sched_getaffinity(0))} cores ({platform.machine()})"
    return f"Measured on {datetime.date.today()}: {cores}; Python {platform.python_version()}, {versions}."
