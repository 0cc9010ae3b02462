"""Attributes of layers that replicas set while they run: each replica finds its own.

The replicas of a process share the Python objects of the model. Each runs in a thread of its own, one at a time, and
stops where all meet (``merge_call``, and what calls it: ``all_reduce``, a variable's ``assign``). Whatever a replica
had set on a layer, the next one sets anew before the first goes on: the losses that layers add, the masks that a
recurrent cell keeps for its steps, the tensors that a model's ``call`` leaves for its ``compute_loss``.

So what a replica sets is taken away when it stops and put back when it goes on, as a processor does with its registers.
Each replica finds the attributes as they were before the step, and what it set itself. After the step they are the
first replica's, as they would be on one device.
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
    """One attribute of one object: what it was before the step and, while its replica does not run, the replica's."""

    owner: Any
    name: str
    before: Any
    own: Any = _NOTHING


class ReplicaAttributes:
    """The attributes that one replica has set in the running step."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[int, str], _Attribute] = {}

    def claim(self, owner: Any, name: str) -> bool:
        """Makes an attribute this replica's, from now on. Returns whether it was not before."""
        key = id(owner), name
        if key in self._attributes:
            return False
        self._attributes[key] = _Attribute(owner, name, vars(owner).get(name, _NOTHING))
        return True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the calling thread runs this replica. Enter in replica context."""
        context: Any = tf.distribute.get_replica_context()
        merge = context._merge_call

        def merge_call(*args: Any) -> Any:
            self._take_away()
            result = merge(*args)
            self.put_back()
            return result

        # On the context, which TensorFlow makes anew for every call of ``Strategy.run``.
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
        """Sets the attributes to what this replica left them at."""
        for attribute in self._attributes.values():
            _put(attribute, attribute.own)


def current() -> ReplicaAttributes | None:
    """Returns those of the replica that the calling thread runs; None if it runs none, or the process' only one."""
    return _running.get()


def _put(attribute: _Attribute, value: Any) -> None:
    # Past __setattr__, which would have layers and variables tracked anew, and this noted.
    if value is _NOTHING:
        vars(attribute.owner).pop(attribute.name, None)
    else:
        vars(attribute.owner)[attribute.name] = value


_running: contextvars.ContextVar[ReplicaAttributes | None] = contextvars.ContextVar(
    "keras_strategies_replica_attributes", default=None
)
