"""Subclasses with our methods for objects of classes that a program chose: nothing changes in the classes themselves.

A class of ours derives from a class of Keras and overrides some of its methods. The subclass that an object gets is
made once per class, and our methods come right before those of the class of Keras that they override:

    ModelCheckpoint                DistributedCheckpoint, ModelCheckpoint
    a user's ModelCheckpoint       TheirCheckpoint, DistributedCheckpoint, ModelCheckpoint

So overrides in a user's class run as in plain Keras. ``instance.__class__`` remains the class that the program chose.
The subclass is not announced to ``__init_subclass__`` of the program's classes, which may register what it declares.
"""

from __future__ import annotations

import types
from typing import Any


class _Unannounced:
    """Keeps Python from calling ``__init_subclass__`` of the classes after it in the method resolution order."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def subclass(cls: type, ours: type, *outermost: type) -> type:
    """Returns the subclass of a class that has our methods; the class itself if it has them.

    Args:
        cls: the class that the program chose.
        ours: a class with our methods, derived from a class of Keras from which `cls` derives.
        outermost: classes whose methods come before those of `cls`.
    """
    if issubclass(cls, ours):
        return cls
    first = (_Unannounced, *outermost)
    bases = (*first, ours) if issubclass(ours, cls) else (*first, cls, ours)
    # Python knows a class' subclasses without keeping them alive.
    subclasses: list[type] = bases[len(first)].__subclasses__()
    for known in subclasses:
        if known.__bases__ == bases:
            return known

    def chosen(instance: Any) -> type:
        # A program may derive a class of its own from `type(model)`.
        return cls if type(instance) is made else type(instance)

    def choose(instance: Any, other: type) -> None:
        _set_class(instance, subclass(other, ours, *outermost))

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        namespace["__class__"] = property(chosen, choose)

    made = types.new_class(cls.__name__, bases, exec_body=fill)
    return made


def become(instance: Any, cls: type) -> None:
    """Sets the class of an object, unless it has that class: ``type(optimizer).from_config`` makes one that has."""
    if type(instance) is not cls:
        _set_class(instance, cls)


def reduced(instance: Any, pickled: Any) -> Any:
    """Returns what pickles hold of an object of Keras: a method of the class that the program chose, and arguments.

    Args:
        instance: the object.
        pickled: what Keras' ``__reduce__`` returns, with the method of our subclass, which cannot be imported.
    """
    load, arguments = pickled
    return getattr(instance.__class__, load.__name__), arguments


#: Sets an object's class. Not by setattr: Keras would track the value, and our subclasses have a setter of their own.
_set_class = vars(object)["__class__"].__set__
