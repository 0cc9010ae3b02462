"""The warning of a loss that is neither a mean nor a sum over rows."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from strategies.batches.row_kinds import Kind

_RULE = (
    "{subject} is {fault}, so that under a strategy it is not that of one device: each replica computes it from its "
    "own rows, and replicas are put together as a mean over rows is, or a sum. Write it as a mean, or as a sum, over "
    "rows, of terms joined by + and by factors that do not depend on the batch; or put it together over replicas "
    "yourself, with tf.distribute.get_replica_context().all_reduce. README says what is computed per replica."
)
_FAULTS = {
    Kind.MIXED: "a sum over rows plus a term that is none",
    Kind.OTHER: "neither a mean nor a sum over rows",
}

_LIBRARIES = ("strategies", "keras", "keras_ext", "tensorflow", "threading", "functools", "contextlib")


def is_fault(kind: Kind) -> bool:
    """True of a loss that cannot be put together of those of replicas."""
    return kind in _FAULTS


def warn_of(kind: Kind, subject: str) -> None:
    """Warns once, with the line of the program, of a loss that cannot be put together of those of replicas."""
    if not is_fault(kind):
        return
    frame: Any = sys._getframe(1)
    program = frame
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            program = frame
            break
        frame = frame.f_back
    # As from the program's own line; Python remembers there which warnings it has shown.
    known = program.f_globals.setdefault("__warningregistry__", {})
    message = _RULE.format(subject=subject, fault=_FAULTS[kind])
    file, module = program.f_code.co_filename, program.f_globals.get("__name__")
    warnings.warn_explicit(message, UserWarning, file, program.f_lineno, module, known)
