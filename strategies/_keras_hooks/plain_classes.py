"""Classes that files record as plain classes of Keras, so that Keras alone can load them.

Such a class has two names: ``__qualname__`` is its own, and ``__name__`` that of the plain class. Keras uses the latter
to name layers, so that their names are the same with and without strategies, and to name folders in files. Otherwise
Keras' naming function would have to be replaced, for all layers in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras

from strategies._keras_hooks.addresses import Functional, serialization_lib
from strategies._keras_hooks.wrapping import wrap

_PLAIN = "_keras_strategies_plain_class"
_Class = TypeVar("_Class", bound=type)


def install() -> None:
    """Wraps the function that records in a file the class of a layer."""
    wrap(serialization_lib, "serialize_with_public_class", _as_plain_class, in_step=False)


def saved_as(plain_class: type) -> Callable[[_Class], _Class]:
    """Saves layers of the decorated class as layers of `plain_class`, so that Keras alone can load them.

    With ``keras.Model`` they are functional models. The decorated class needs a class method ``plain_config(config)``,
    which removes from a config what `plain_class` does not know. Its ``__name__`` becomes that of `plain_class`;
    ``__qualname__``, which Python prints, stays. Subclasses are saved under their own class.

    Example:

        @layer_api.saved_as(keras.layers.Dense)
        class ColumnParallelDense(keras.layers.Dense):
            @classmethod
            def plain_config(cls, config):
                return {name: value for name, value in config.items() if name != "gather_output"}
    """
    # Configs may be read before any strategy is made.
    install()
    plain = Functional if plain_class is keras.Model else plain_class

    def mark(cls: _Class) -> _Class:
        setattr(cls, _PLAIN, plain)
        cls.__name__ = plain.__name__
        return cls

    return mark


def is_plain(cls: type) -> bool:
    """Returns True if files record a layer of the class under that class itself."""
    return _PLAIN not in vars(cls)


def _as_plain_class(
    original: Callable[..., Any], cls: type, inner_config: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    plain = vars(cls).get(_PLAIN)
    if plain is None:
        return original(cls, inner_config)
    marked: Any = cls
    return original(plain, marked.plain_config(inner_config))
