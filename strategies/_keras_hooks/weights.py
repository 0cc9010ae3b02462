"""Weights that are split: to the outside, arrays and files, each is one."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import keras

# The class of what ``keras.Model(inputs, outputs)`` makes has no public name.
from keras.src.models.functional import Functional
from keras.src.optimizers import base_optimizer
from keras.src.saving import serialization_lib
from keras.src.utils import naming

from strategies._keras_hooks.whole_updates import needs_whole
from strategies._keras_hooks.wrapping import wrap
from strategies.replica.splitting import Slots, class_in_files, joined, name_in_files, weight_of

_slots: weakref.WeakKeyDictionary[Any, Slots] = weakref.WeakKeyDictionary()


def install() -> None:
    """Wraps what reads and sets weights as arrays, and what says in a file which class a layer is of."""
    for name in ("get_weights", "set_weights"):
        wrap(keras.Layer, name, _with_whole_weights, in_step=False)
    for name in ("save_own_variables", "load_own_variables", "set_weights"):
        wrap(base_optimizer.BaseOptimizer, name, _with_whole_slots, in_step=False)
    wrap(serialization_lib, "serialize_with_public_class", _as_plain_class, in_step=False)
    # The folders in a file are named after classes.
    wrap(naming, "to_snake_case", _as_plain_name, in_step=False)


def _with_whole_weights(original: Callable[..., Any], layer: Any, *args: Any) -> Any:
    weights = layer.weights
    whole = joined(weights)
    if len(whole) == len(weights):
        return original(layer, *args)
    return original(types.SimpleNamespace(weights=whole, name=layer.name), *args)


def _with_whole_slots(original: Callable[..., Any], optimizer: Any, *args: Any) -> Any:
    variables = optimizer.variables
    whole = joined(variables)
    if len(whole) == len(variables):
        return original(optimizer, *args)
    view = types.SimpleNamespace(
        name=optimizer.name, built=optimizer.built, variables=whole, _variables=whole, _var_key=lambda v: v.name
    )
    return original(view, *args)


def note_slot(optimizer: Any, reference: Any, slot: Any) -> None:
    """Remembers that ``optimizer`` made ``slot`` for the variable ``reference``."""
    weight = weight_of(reference)
    if weight is not None and not needs_whole(optimizer):
        _slots.setdefault(optimizer, Slots()).note(weight, reference, slot)


def _as_plain_class(original: Callable[..., Any], cls: Any, inner_config: Any = None) -> Any:
    plain = class_in_files(cls)
    if plain is cls:
        return original(cls, inner_config)
    return original(Functional if plain is keras.Model else plain, cls.plain_config(inner_config))


def _as_plain_name(original: Callable[..., Any], name: str) -> Any:
    plain = name_in_files(name)
    is_functional = plain != name and plain == keras.Model.__name__
    return original(Functional.__name__ if is_functional else plain)
