"""The files that belong into the distribution, and a comparison with those of a wheel and an sdist."""

from __future__ import annotations

import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tests.processes import ROOT

PACKAGES = ("strategies", "keras_ext")
#: Files of the packages that are no Python: types, a list of hooks, the page of `strategies-status`.
DATA = frozenset(
    {
        "keras_ext/py.typed",
        "strategies/__init__.pyi",
        "strategies/_keras_hooks/keras_names.toml",
        "strategies/monitoring/page.html",
        "strategies/py.typed",
    }
)
#: Files of the packages that are for readers of the sources.
_FOR_READERS = frozenset({".md", ".svg"})
_LARGEST_BYTES = 3_000_000


def expected_files() -> set[str]:
    """Returns the files of the packages, by their paths in a wheel."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(ROOT))
        for path in paths
        if "__pycache__" not in path.parts and path.suffix not in _FOR_READERS
    }


def wheel_problems(wheel: Path) -> list[str]:
    """Returns a line for each file that a wheel lacks or should not have, and for its size."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        has_license = any(name.endswith("LICENSE") for name in archive.namelist())
    wanted = expected_files()
    problems = [f"lacks {name}" for name in sorted(wanted - names)]
    problems += [f"should not have {name}" for name in sorted(names - wanted)]
    problems += [f"is of no known kind: {name}" for name in sorted(names - DATA) if not name.endswith(".py")]
    problems += [] if has_license else ["lacks LICENSE"]
    size = wheel.stat().st_size
    return problems + ([f"has {size:,} bytes"] if size > _LARGEST_BYTES else [])


def sdist_problems(sdist: Path) -> list[str]:
    """Returns a line for each file that an sdist lacks or should not have."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
    wanted = expected_files() | {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    # Setuptools writes these.
    written = {name for name in names if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    problems = [f"lacks {name}" for name in sorted(wanted - names)]
    return problems + [f"should not have {name}" for name in sorted(names - wanted - written)]


def metadata_of(wheel: Path) -> Message:
    """Returns the metadata of a wheel."""
    return Parser().parsestr(_read(wheel, "METADATA"))


def console_scripts_of(wheel: Path) -> dict[str, str]:
    """Returns the functions of a wheel's console scripts, by their names."""
    lines = _read(wheel, "entry_points.txt").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): function.strip() for name, _, function in pairs}


def _read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        [path] = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()
