"""Reads the YAML files of `deploy/`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
# The package has no types.
_yaml: Any = importlib.import_module("yaml")


def load(path: Path) -> list[dict[str, Any]]:
    """Returns the documents of a file."""
    return [document for document in _yaml.safe_load_all(path.read_text()) if document]
