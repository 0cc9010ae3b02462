"""Wraps Keras' functions in place, each once, and records them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from strategies.engine.engine import engine_of
from strategies.replica.parts import ReplicaParts

#: AutoGraph, which converts a user's step, does not convert Keras' functions, nor ours in their place.
not_converted = tf.autograph.experimental.do_not_convert

_MARK = "_keras_strategies_wrapper"

#: Parameters that a wrapper passes on unchanged, and the result of the wrapped function.
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Hook:
    """A function of Keras or TensorFlow that is wrapped.

    Attributes:
        original: the function as it was before.
        wrapper: is called with `original` first, then with the caller's arguments.
    """

    original: Callable[..., Any]
    wrapper: Callable[..., Any]

    @property
    def name(self) -> str:
        """The wrapper's name, with its module."""
        return f"{self.wrapper.__module__}.{self.wrapper.__qualname__}"


# Hooks by full name. Users' classes are left out: they may be garbage collected.
_hooks: dict[str, Hook] = {}


def wrap(owner: Any, name: str, wrapper: Callable[..., Any], *, in_step: bool = True) -> None:
    """Replaces ``owner.name``, or the getter of a property, by a function that calls ``wrapper(original, ...)``.

    Args:
        owner: class or module that defines ``name`` itself.
        name: the attribute.
        wrapper: takes the original function first, then the caller's arguments.
        in_step: whether it is called inside a step. AutoGraph, which converts a user's step, then does not convert it,
            just as it does not convert Keras' own functions.

    Raises:
        RuntimeError: if ``owner`` does not define ``name``: this package does not support this Keras; or if another
            wrapper wraps it already: two wrappers of one function would have to call each other.
    """
    found = vars(owner).get(name)
    original = found.fget if isinstance(found, property) else found
    if original is None:
        raise RuntimeError(
            f"{full_name(owner, name)} does not exist: {wrapper.__module__}.{wrapper.__qualname__} hooks into it. "
            "Install a Keras in the range that `pip show keras-strategies` requires."
        )
    if hasattr(original, _MARK):
        known = getattr(original, _MARK)
        if inspect.unwrap(known) is not inspect.unwrap(wrapper):
            raise RuntimeError(f"{full_name(owner, name)} is wrapped already, by {known}.")
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    hooked = not_converted(wrapped) if in_step else wrapped
    setattr(hooked, _MARK, wrapper)
    if inspect.isfunction(original):
        # Keras inspects the signatures of constructors, and does not unwrap them.
        vars(hooked)["__signature__"] = inspect.signature(original)
    setattr(owner, name, property(hooked, found.fset, found.fdel) if isinstance(found, property) else hooked)
    if full_name(owner, name).startswith(("keras.", "tensorflow.")):
        _hooks[full_name(owner, name)] = Hook(original, wrapper)


def hooks() -> Mapping[str, Hook]:
    """Returns the functions of Keras and TensorFlow that are wrapped, by their full names."""
    return types.MappingProxyType(_hooks)


def full_name(owner: Any, name: str) -> str:
    """Returns the name of an attribute of a class or module, with its module."""
    return f"{owner.__module__}.{owner.__qualname__}.{name}" if inspect.isclass(owner) else f"{owner.__name__}.{name}"


def overrides(owner: Any, base: type, name: str) -> bool:
    """Returns True if ``owner``, or the class that the program chose for it, overrides a method of a class of Keras."""
    return name in getattr(owner, "__dict__", ()) or getattr(owner.__class__, name, None) is not vars(base)[name]


def spanning_parts() -> ReplicaParts | None:
    """Returns the parts of a replica under the current strategy if they belong to several processes, else None."""
    engine = engine_of(tf.distribute.get_strategy())
    return None if engine is None else engine.spanning_parts
