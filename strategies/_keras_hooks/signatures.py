"""Signatures of functions as text, and the lines that report where they differ from those that are known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any


def signature(value: Any) -> str:
    """Returns the signature as text; for an object without a signature, its kind."""
    if inspect.ismodule(value):
        return "module"
    if isinstance(value, property):
        value = value.fget
    if not callable(value):
        return type(value).__name__
    text = re.sub(r"<class '([^']+)'>", r"\1", str(inspect.signature(value)))
    return re.sub(r"<(UnconnectedGradients\.\w+): '\w+'>", r"\1", text)


def differing(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Returns one line for each function whose signature, among those that are found, is not the known one."""
    return [
        f"{name} was {known[name]}, is {found[name]}" for name in known if found.get(name, known[name]) != known[name]
    ]
