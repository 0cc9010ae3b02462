"""Finds lines of the user's program among the frames of libraries: the current line, and the one that made a tensor."""

from __future__ import annotations

import sys
from typing import Any

_LIBRARIES = ("strategies", "keras", "keras_ext", "tensorflow", "threading", "functools", "contextlib")
# The hooks, and the module that wraps functions with them, are in this package.
_HOOK = "strategies._keras_hooks."


def program_frame() -> Any:
    """Returns the innermost frame of the user's program; the caller's frame if there is none."""
    caller: Any = sys._getframe(1)
    frame = caller
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return caller if frame is None else frame


def is_called_by_program(*between: str) -> bool:
    """Returns True if the calling hook was called by the user's program itself, not by Keras or this package.

    Args:
        between: modules or packages through which a program may call the hook.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and _name(frame).startswith((_HOOK, *between)):
        frame = frame.f_back
    return frame is not None and not _is_library(frame)


def line_of(tensor: Any) -> tuple[str, int] | None:
    """Returns the file and line of the program that made a tensor; None if unknown, as for an eager tensor."""
    if hasattr(tensor, "numpy"):
        return None
    files = [sys.modules[name].__file__ or "" for name in _LIBRARIES if name in sys.modules]
    folders = tuple(each.removesuffix("__init__.py") for each in files)
    for frame in reversed(tensor.op.traceback):
        if not frame.filename.startswith((*folders, "<")):
            return frame.filename, int(frame.lineno)
    return None


def _is_library(frame: Any) -> bool:
    return _name(frame).partition(".")[0] in _LIBRARIES


def _name(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))
