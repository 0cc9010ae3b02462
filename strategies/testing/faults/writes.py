"""Detects, from Python's audit events, changes that a process makes to checkpoint files. Standard library only."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changed_path(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Returns the path that an audit event is about to change; None for an event that changes none."""
    if event == "open" and len(arguments) == 3:
        path, mode, flags = arguments
        writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool((flags or 0) & _WRITING)
        if not writes:
            return None
    elif event in _CHANGES:
        path = arguments[0]
        if event == "os.mkdir" and Path(os.fsdecode(path)).is_dir():
            # The folder exists already: nothing changes.
            return None
    else:
        return None
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None


def watch_writes(callback: Callable[[str], None], word: str) -> None:
    """Calls `callback` before each change of a path that contains `word`, for as long as the owner of `callback` lives.

    An exception in `callback` propagates out of the operation. Changes that `callback` itself makes are not watched.

    Args:
        callback: a bound method that takes the path.
        word: the text that a watched path contains.
    """
    method: weakref.WeakMethod[Callable[[str], None]] = weakref.WeakMethod(callback)
    inside = threading.local()
    # Local names: at its end, the interpreter clears the module's names while files are still being closed.
    watched, changed, is_ending = ("open", *_CHANGES), changed_path, sys.is_finalizing

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # Called for every audit event, so it returns fast where there is nothing to do.
        if event not in watched or is_ending():
            return
        path = changed(event, arguments)
        if path is None or word not in path or getattr(inside, "now", False):
            return
        current = method()
        if current is None:
            return
        inside.now = True
        try:
            current(path)
        finally:
            inside.now = False

    # An audit hook cannot be removed: this one does nothing once its owner is gone.
    sys.addaudithook(hook)
