"""Saves and restores the layer attributes that each replica sets while it runs.

The replicas of a process share the Python objects of the model. Each replica runs in its own thread, one at a time, and
stops where all replicas synchronize (``merge_call``, and its callers: ``all_reduce``, a variable's ``assign``). Without
this module, the next replica would overwrite what the first one had set on a layer before the first one resumes: the
losses that layers add, the masks that a recurrent cell keeps for its steps, the tensors that a model's ``call`` leaves
for its ``compute_loss``.

So the attributes that a replica sets are removed when it stops and restored when it resumes, as an operating system
saves registers in a context switch. Each replica finds the attributes as they were before the step, plus those it set
itself. After the step they have the first replica's values, as they would on one device.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_NOTHING = object()


@dataclasses.dataclass
class _Attribute:
    """One attribute of one object: its value before the step, and the replica's value while the replica is stopped."""

    owner: Any
    name: str
    before: Any
    own: Any = _NOTHING


class ReplicaAttributes:
    """The attributes that one replica has set in the running step."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[int, str], _Attribute] = {}

    def claim(self, owner: Any, name: str) -> bool:
        """Registers an attribute as this replica's. Returns True if it was not registered before."""
        key = id(owner), name
        if key in self._attributes:
            return False
        self._attributes[key] = _Attribute(owner, name, vars(owner).get(name, _NOTHING))
        return True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: the calling thread runs this replica. Enter it in replica context."""
        context: Any = tf.distribute.get_replica_context()
        merge = context._merge_call

        def merge_call(*args: Any) -> Any:
            self._take_away()
            result = merge(*args)
            self.put_back()
            return result

        # Set on the context object, since TensorFlow creates a new one for every call of ``Strategy.run``.
        context._merge_call = merge_call
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)
            del context._merge_call
            self._take_away()

    def _take_away(self) -> None:
        for attribute in self._attributes.values():
            attribute.own = vars(attribute.owner).get(attribute.name, _NOTHING)
            _put(attribute, attribute.before)

    def put_back(self) -> None:
        """Sets the attributes to the values that this replica left."""
        for attribute in self._attributes.values():
            _put(attribute, attribute.own)


def current() -> ReplicaAttributes | None:
    """Returns the attributes of this thread's replica; None without a replica, or if the process has only one."""
    return _running.get()


def _put(attribute: _Attribute, value: Any) -> None:
    # Bypasses __setattr__, which would track layers and variables again, and register the attribute.
    if value is _NOTHING:
        vars(attribute.owner).pop(attribute.name, None)
    else:
        vars(attribute.owner)[attribute.name] = value


_running: contextvars.ContextVar[ReplicaAttributes | None] = contextvars.ContextVar(
    "keras_strategies_replica_attributes", default=None
)
