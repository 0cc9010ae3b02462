"""Creates variables where a replica spans processes: each process holds the variables of its own parts.

Every process creates every variable of a model, in the same order, so that each can show the whole model. A process
that owns no part at the coordinates of a variable creates one without a value. Weights that it may hold are initialized
when they are first needed: a copy of the model, split or cut into stages, takes over their initializers, and the
original weights are never initialized.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.replica.creation_context import creation_context
from strategies.replica.deferred import DeferredVariable, RemoteVariable, is_remote
from strategies.replica.parts import ReplicaParts


def has_value(part: int | None, kwargs: dict[str, Any], *, may_defer: bool = True) -> bool:
    """Returns True if this process initializes a variable now; else :func:`without_value` creates it.

    Args:
        part: the owned part that holds the variable; None if this process owns no part at its coordinates.
        kwargs: the arguments of the variable's creation.
        may_defer: True if its initialization can wait until it is needed.
    """
    if _is_elsewhere(part, kwargs):
        return False
    on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    if not may_defer or not callable(kwargs.get("initial_value")) or on_read:
        return True
    return not form_of(kwargs)["dtype"].is_floating


def without_value(parts: ReplicaParts, part: int | None, kwargs: dict[str, Any]) -> RemoteVariable | DeferredVariable:
    """Returns the component of a variable that is not initialized now; see :func:`has_value`.

    Args:
        parts: the parts of a replica that spans processes.
        part: the owned part that holds the variable; None if this process owns no part at its coordinates.
        kwargs: the arguments of the variable's creation.
    """
    reference, initial_value = kwargs.get("colocate_with"), kwargs.get("initial_value")
    if _is_elsewhere(part, kwargs):
        return remote(reference.values[0].owner if reference is not None else current_owner(parts), kwargs)
    device = parts.part_devices(part or 0)[0] if reference is None else _device_of(reference)
    with tf.device(device):
        return DeferredVariable(initial_value if callable(initial_value) else lambda: initial_value, **form_of(kwargs))


def _is_elsewhere(part: int | None, kwargs: dict[str, Any]) -> bool:
    reference = kwargs.get("colocate_with")
    return part is None if reference is None else bool(is_remote(reference))


def remote(owner: int, kwargs: dict[str, Any]) -> RemoteVariable:
    """Returns a placeholder for a variable that process `owner` holds, created there with the arguments ``kwargs``."""
    with tf.device("CPU:0"):
        return RemoteVariable(owner, **form_of(kwargs))


def form_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the properties of a variable that are known before its value: shape, dtype, name and others."""
    shape, dtype = _shape_and_dtype(kwargs.get("initial_value"), kwargs.get("dtype"))
    return {"shape": shape, "dtype": dtype} | {name: kwargs.get(name) for name in ("name", "trainable", "aggregation")}


def current_owner(parts: ReplicaParts) -> int:
    """Returns the rank of the first process of this replica that owns a part at the current coordinates."""
    return next(parts.owner(part) for part in range(parts.mesh.size) if parts.is_at(part, parts.coordinates))


def _device_of(reference: Any) -> str:
    devices = getattr(reference, "_devices", None)
    return str(devices[0] if devices else reference.device)


def _shape_and_dtype(initial_value: Any, dtype: Any) -> tuple[tf.TensorShape, tf.DType]:
    form = creation_context().form
    if callable(initial_value) and form is not None:
        return tf.TensorShape(form[0]), tf.as_dtype(form[1])
    if callable(initial_value):
        with tf.Graph().as_default():
            made = tf.convert_to_tensor(initial_value(), dtype)
    else:
        made = tf.convert_to_tensor(initial_value, dtype)
    return made.shape, made.dtype
