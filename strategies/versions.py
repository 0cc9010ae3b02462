"""The versions of TensorFlow, Keras and NumPy that this package is tested with."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import warnings
from collections.abc import Mapping

#: For each library the first version and the one after the last: the ranges that `pyproject.toml` requires.
TESTED: Mapping[str, tuple[str, str]] = {
    "tensorflow": ("2.19", "2.23"),
    "keras": ("3.12", "3.17"),
    "numpy": ("2.0", "2.5"),
}


def warn_of_untested(found: Mapping[str, str]) -> None:
    """Emits one warning if any version is outside its tested range.

    The package hooks into functions of TensorFlow and Keras that other releases may have changed. A function that no
    longer exists raises an error when the first strategy is made; one that behaves differently is not noticed.

    Args:
        found: the version of each library, by its name in `TESTED`.
    """
    wrong = [name for name, version in found.items() if not is_tested(name, version)]
    if wrong:
        ranges = ", ".join(f"{name} >= {low}, < {high}" for name, (low, high) in TESTED.items())
        received = ", ".join(f"{name} {found[name]}" for name in wrong)
        warnings.warn(
            f"keras-strategies is not tested with {received}: numbers may differ from those of one device. Tested are "
            f"{ranges}. Install these, or run the tests of the package first.",
            stacklevel=2,
        )


def installed() -> dict[str, str]:
    """Returns the versions of Python, this package and the libraries in `TESTED`: training's numbers depend on them."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("keras-strategies", *TESTED):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # The package runs from its sources, or a library is installed under another name, as nightly builds are.
            found[name] = "not known"
    return found


def is_tested(name: str, version: str) -> bool:
    """Returns True if the version of a library in `TESTED` is within its range."""
    low, high = map(_numbers, TESTED[name])
    return low <= _numbers(version) < high


def is_at_least(version: str, since: str) -> bool:
    """Returns True if a version, such as "3.15.1", belongs to a release, such as "3.15", or to a later one."""
    return _numbers(version) >= _numbers(since)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
