"""Classes that are plain classes of Keras in files, so that Keras alone opens what they save.

A class bears two names: ``__qualname__`` is its own, and ``__name__`` that of the plain class. Keras reads the latter
where it names layers, which are then named alike with and without strategies, and the folders of files. Anything but
the class' own name would have to replace Keras' function of names, for the layers of all programs in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras

# The class of what ``keras.Model(inputs, outputs)`` makes has no public name.
from keras.src.models.functional import Functional
from keras.src.saving import serialization_lib

from strategies._keras_hooks.wrapping import wrap

_PLAIN = "_keras_strategies_plain_class"
_Class = TypeVar("_Class", bound=type)


def install() -> None:
    """Wraps what says in a file which class a layer is of."""
    wrap(serialization_lib, "serialize_with_public_class", _as_plain_class, in_step=False)


def saved_as(plain_class: type) -> Callable[[_Class], _Class]:
    """Makes layers of the decorated class be layers of `plain_class` in files, so that Keras alone opens them.

    With ``keras.Model`` they are models of inputs and outputs. The decorated class has a class method
    ``plain_config(config)``, which takes out of a config what `plain_class` does not know. Its ``__name__`` becomes
    that of `plain_class`; ``__qualname__``, which Python prints, stays. Subclasses of it are classes like others.

    Example:

        @layer_api.saved_as(keras.layers.Dense)
        class ColumnParallelDense(keras.layers.Dense):
            @classmethod
            def plain_config(cls, config):
                return {name: value for name, value in config.items() if name != "gather_output"}
    """
    # Configs may be asked for before any strategy is made.
    install()
    plain = Functional if plain_class is keras.Model else plain_class

    def mark(cls: _Class) -> _Class:
        setattr(cls, _PLAIN, plain)
        cls.__name__ = plain.__name__
        return cls

    return mark


def is_plain(cls: type) -> bool:
    """True if a layer of the class is of that class in files, too."""
    return _PLAIN not in vars(cls)


def _as_plain_class(
    original: Callable[..., Any], cls: type, inner_config: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    plain = vars(cls).get(_PLAIN)
    if plain is None:
        return original(cls, inner_config)
    marked: Any = cls
    return original(plain, marked.plain_config(inner_config))
