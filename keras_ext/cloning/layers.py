"""Copies of layers made from their class and config, or from the arguments of their constructor."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import Any

import keras

from keras_ext.cloning.pairing import pairs
from keras_ext.cloning.state import take_settings, take_vocabulary


def remade(layer: Any, other_class: Any = None, **own: Any) -> Any:
    """Returns a layer like the given one, without its weights, made from its config.

    A layer that has no config, or an incomplete one, is made from the arguments that its constructor was given.

    Args:
        layer: one of Keras' layers, or a layer that holds an object that cannot be copied.
        other_class: the class of the new layer, which takes the config of `layer`.
        **own: further arguments of that class.

    Raises:
        ValueError: the layer can be made in neither way.
    """
    new = _remade(layer) if other_class is None else _from_config(layer, other_class, own)
    for one, other in pairs(layer, new):
        take_settings(one, other)
        take_vocabulary(one, other)
    return new


def _remade(layer: Any) -> Any:
    if type(layer) is keras.layers.Lambda:
        # `from_config` takes a Lambda's functions only in the form that they have in files.
        config = {name: value for name, value in _config_of(layer).items() if name in ("name", "trainable", "dtype")}
        given = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
        return keras.layers.Lambda(layer.function, **given, **config)
    if type(layer) is keras.layers.TextVectorization:
        return _text_vectorization(layer)
    try:
        return _from_config(layer, type(layer), {})
    # A user's constructor or `from_config` may raise anything.
    except Exception as error:
        reason = error
    with contextlib.suppress(Exception):
        return _from_arguments(layer)
    name = type(layer).__name__
    raise ValueError(
        f"The layer {layer.name!r} is copied by its config, but cannot be created from it: implement get_config() of "
        f"{name} with all that its __init__ takes, and from_config() where these are not plain values. Received: "
        f"{layer!r}, which raised {type(reason).__name__}: {str(reason).strip().partition('Example:')[0].strip()}"
    ) from reason


def _from_config(layer: Any, cls: Any, own: dict[str, Any]) -> Any:
    """Returns a layer made as from a file, except that classes and functions need not be registered."""
    known: dict[str, Any] = {}
    for inner in layer._flatten_layers():
        known |= {function.__name__: function for function in _own_functions(inner).values()}
        if type(inner).__module__.partition(".")[0] != "keras":
            # `__qualname__`: the `__name__` of a split layer is that of the plain class, which configs contain as well.
            known[type(inner).__qualname__.rpartition(".")[2]] = type(inner)
    functions = _own_functions(layer)
    with keras.saving.CustomObjectScope(known):
        if functions:
            # `from_config` takes lambdas only as in files, but Keras' own layers also take the functions themselves.
            with contextlib.suppress(Exception):
                return cls.from_config(_config_of(layer) | functions | own)
        return cls.from_config(_config_of(layer) | own)


def _from_arguments(layer: Any) -> Any:
    """Returns a layer made from the constructor's arguments, which Keras keeps if they are plain values."""
    given = getattr(getattr(layer, "_auto_config", None), "config", None)
    if given is None:
        raise ValueError(f"{type(layer).__name__} was given other than plain values.")
    before = keras.config.dtype_policy()
    # A layer takes the global policy, unless it has a dtype argument of its own.
    keras.config.set_dtype_policy(layer.dtype_policy)
    try:
        return type(layer)(**given)
    finally:
        keras.config.set_dtype_policy(before)


def _config_of(layer: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        # The warning says that lambdas in files are unsafe.
        warnings.filterwarnings("ignore", message="The object being serialized includes a `lambda`")
        config = dict(layer.get_config())
    if getattr(layer, "lora_enabled", False):
        # The copy is built without adapters; `take_form` adds them.
        config = {name: value for name, value in config.items() if name not in ("lora_rank", "lora_alpha")}
    return config


def _own_functions(layer: Any) -> dict[str, Any]:
    """Returns the arguments of a layer that are functions, and not Keras' own."""
    values = {name: getattr(layer, name, None) for name in _config_of(layer)}
    return {
        name: value
        for name, value in values.items()
        if inspect.isfunction(value) and not value.__module__.startswith("keras.")
    }


def _text_vectorization(layer: Any) -> Any:
    """Copies a TextVectorization, whose `from_config` takes a user's functions only as they are in files."""
    config = layer.get_config()
    own = {name: config.pop(name) for name in ("standardize", "split") if callable(config[name])}
    new = keras.layers.TextVectorization.from_config({"standardize": None, "split": None, **config})
    for name, function in own.items():
        setattr(new, f"_{name}", function)
    return new
