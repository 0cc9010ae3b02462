"""Name scopes for traced operations, by which a trace shows to which collective or pass each belongs."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from strategies.op_names import names


def in_process(kind: str, axis: str) -> contextlib.AbstractContextManager[object]:
    """Context manager: operations made in it belong to a collective between devices of this process."""
    return _scope(names.in_process(kind, axis))


def pass_of_stage(stage: int, kind: str, microbatch: int) -> contextlib.AbstractContextManager[object]:
    """Context manager: operations made in it belong to a pass of a pipeline's stage; see `names.StagePass`."""
    return _scope(names.pass_scope(names.StagePass(stage, kind, microbatch)))


def _scope(name: str) -> contextlib.AbstractContextManager[object]:
    # Eagerly names have no use, and would take time.
    return contextlib.nullcontext() if tf.executing_eagerly() else tf.name_scope(name)
