"""Refuses optimizers of programs that combine gradients of several weights where a process has only some of them.

A program's optimizer may override `apply` or `apply_gradients`, and clip all gradients there by their common norm. If
stages or shards of a layer are in other processes, or if each process updates some of the weights and another optimizer
wraps this one, the method gets some of the gradients, and its norm is not that of all. A method that changes each
gradient by itself is right there. The graph shows the difference: what the method passes on is computed from the
gradient of the same weight alone, or from those of others, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.optimizer_updates import OptimizerUpdate
from strategies._tf_internals import get_update_replica_id

#: For each thread, the gradients that running methods of programs were given, innermost last.
_running = threading.local()


@contextlib.contextmanager
def given(update: OptimizerUpdate | None, gradients: Sequence[Any] | None) -> Iterator[None]:
    """Context manager: a method of the program's optimizer runs, and was given these gradients.

    Args:
        update: how updates of the optimizer run under the current strategy; None if it is of another one.
        gradients: the gradients; None if the optimizer has no such method of its own.
    """
    if gradients is None or _why_some(update) is None:
        yield
        return
    stack: list[Sequence[Any]] = _running.__dict__.setdefault("stack", [])
    stack.append(gradients)
    try:
        yield
    finally:
        stack.pop()


def check_separate(optimizer: keras.Optimizer, update: OptimizerUpdate | None, passed_on: Sequence[Any]) -> None:
    """Refuses gradients that the running method of the program's optimizer has combined. Does nothing outside of one.

    Args:
        optimizer: the optimizer.
        update: how its updates run under the current strategy; None if it is of another one.
        passed_on: the gradients that its method has passed on, in the order in which it was given them.

    Raises:
        ValueError: this process has some of the gradients, and one that is passed on is computed from those of other
            weights, or in an eager step may be.
    """
    stack: list[Sequence[Any]] = _running.__dict__.get("stack", [])
    why = _why_some(update) if stack else None
    if why is None:
        return
    before = [_tensor(gradient) for gradient in stack[-1]]
    after = [_tensor(gradient) for gradient in passed_on]
    is_eager = any(tensor is not None and not tf.is_symbolic_tensor(tensor) for tensor in after)
    unchanged = len(after) == len(before) and all(one is other for one, other in zip(after, before, strict=True))
    if unchanged or not (is_eager or _are_combined(before, after)):
        return
    raise ValueError(
        f"{optimizer.__class__.__name__} overrides apply or apply_gradients, and computes the gradient of one weight "
        f"from those of others{', or may do so in a step that runs eagerly' * is_eager}; but {why}. Clip by "
        "global_clipnorm, clipnorm or clipvalue, which see all gradients, or change each gradient by itself. Received: "
        f"{optimizer.name!r}."
    )


def _why_some(update: OptimizerUpdate | None) -> str | None:
    """Returns why an optimizer gets some of the gradients in this process; None if it gets all."""
    if update is None:
        return None
    if update.engine.spanning_parts is not None:
        return "a replica's weights, and their gradients, are in several processes here"
    if update.is_partitioned and update.engine.num_processes > 1 and get_update_replica_id() is not None:
        return "each process updates some of the weights here (shard=...), for an optimizer that wraps this one"
    return None


def _are_combined(before: Sequence[tf.Tensor | None], after: Sequence[tf.Tensor | None]) -> bool:
    """Returns True if one of the tensors `after` is computed from several of those `before`."""
    positions = {id(tensor): i for i, tensor in enumerate(before) if tensor is not None}
    for tensor in after:
        found: set[int] = set()
        seen: set[int] = set()
        pending = [] if tensor is None else [tensor]
        while pending:
            each = pending.pop()
            if id(each) in positions:
                found.add(positions[id(each)])
            elif id(each) not in seen:
                seen.add(id(each))
                pending += each.op.inputs
        if len(found) > 1:
            return True
    return False


def _tensor(gradient: Any) -> tf.Tensor | None:
    if gradient is None or isinstance(gradient, tf.Tensor):
        return gradient
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
