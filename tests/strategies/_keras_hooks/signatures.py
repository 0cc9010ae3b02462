"""Signatures of the hooked functions, as `inventory.toml` lists them, and the lines that report a change."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any


def signature(value: Any) -> str:
    """Returns the signature as text; for an object without a signature, its kind."""
    if inspect.ismodule(value):
        return "module"
    if not callable(value):
        return type(value).__name__
    text = re.sub(r"<class '([^']+)'>", r"\1", str(inspect.signature(value)))
    return re.sub(r"<(UnconnectedGradients\.\w+): '\w+'>", r"\1", text)


def changes(known: Mapping[str, str], found: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Returns one line for each name that is gone, new or changed.

    Args:
        known: signatures, by names of Keras or TensorFlow.
        found: the signatures of the installed release.
        ours: the code that relies on them, by the same names.
    """
    lines = [f"{name} is gone" for name in known if name not in found]
    lines += [f"{name}{found[name]} is not in inventory.toml" for name in found if name not in known]
    return lines + [
        f"{name} was {known[name]}, is {found[name]}: see {ours[name]}"
        for name in known
        if found.get(name, known[name]) != known[name]
    ]
