"""Subclasses with our methods for objects of classes that a program chose: nothing changes in the classes themselves.

A class of ours derives from a class of Keras and overrides some of its methods. The subclass that an object gets is
made once per class, and our methods come right before those of the class of Keras that they override:

    ModelCheckpoint                DistributedCheckpoint, ModelCheckpoint
    a user's ModelCheckpoint       TheirCheckpoint, DistributedCheckpoint, ModelCheckpoint

So overrides in a user's class run as in plain Keras. ``instance.__class__`` remains the class that the program chose.
"""

from __future__ import annotations

import types
from typing import Any


def subclass(cls: type, ours: type, *outermost: type) -> type:
    """Returns the subclass of a class that has our methods.

    Args:
        cls: the class that the program chose.
        ours: a class with our methods, derived from a class of Keras from which `cls` derives.
        outermost: classes whose methods come before those of `cls`.
    """
    bases = (*outermost, ours) if issubclass(ours, cls) else (*outermost, cls, ours)
    # Python knows a class' subclasses without keeping them alive.
    subclasses: list[type] = bases[len(outermost)].__subclasses__()
    for known in subclasses:
        if known.__bases__ == bases:
            return known

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        namespace["__class__"] = property(lambda _: cls)

    return types.new_class(cls.__name__, bases, exec_body=fill)


def become(instance: Any, cls: type) -> None:
    """Sets the class of an object, unless it has that class: ``type(optimizer).from_config`` makes one that has."""
    if type(instance) is not cls:
        # Not by setattr: Keras would track the value.
        object.__setattr__(instance, "__class__", cls)
