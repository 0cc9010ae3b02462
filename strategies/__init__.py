"""Strategies that train Keras 3 models on TensorFlow across devices and processes, with the numbers of one device."""

import ast
import importlib
from pathlib import Path
from typing import Any

# TensorFlow takes seconds to import, and some modules of this package, such as the launcher and the installation of
# Horovod, do not need it. So each name is imported on first use, from the module that the stub beside this file names.
_MODULES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] == __name__:
        # A submodule, such as `elastic`, and not a name in one.
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
