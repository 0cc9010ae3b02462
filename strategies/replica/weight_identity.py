"""The keys and names by which an optimizer identifies a weight: those of one device, however the weight is stored.

A program selects weights without decay, or with a learning rate of their own, by the variable or by a part of its name.
Here the optimizer sees shards and slices of the weight, or the weight of a copy of the model, with other ids and names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from strategies.replica.splitting import SplitWeight, weight_of
from strategies.replica.weight_slices import WeightSlice

_ORIGINALS = "_keras_strategies_originals"
#: The attribute of a copy with the name of the original's TensorFlow variable.
_ORIGINAL_NAME = "_keras_strategies_original_name"
_OWN_NAMES = "_keras_strategies_own_names"


def note_copy(old: Any, new: Any) -> None:
    """Records that ``new``, a Keras variable or split weight of a copied model, corresponds to ``old`` of the model.

    The copy takes the path and the name of ``old``, by which programs choose optimizers, rates and weight decay. Keras
    builds an inner layer, such as the cell of an RNN, outside of the outer layer's name scope if it makes the outer one
    from a config.
    """
    setattr(new, _ORIGINALS, keys_of(old))
    setattr(new, _ORIGINAL_NAME, variable_name(old))
    if new.path == old.path:
        return
    if isinstance(new, SplitWeight):
        new.set_path(old.path)
    else:
        new._path = old.path


def keys_of(weight: Any) -> tuple[str, ...]:
    """Returns the ids by which an optimizer may know a weight: its own, and those of its whole and its original.

    Args:
        weight: a Keras or TensorFlow variable, a split weight, or a slice of one of these.
    """
    if isinstance(weight, WeightSlice):
        return keys_of(weight.variable)
    whole = weight_of(weight)
    own = (_key(weight), *vars(weight).get(_ORIGINALS, ()))
    return own if whole is None else own + keys_of(whole)


def is_plain(weight: Any) -> bool:
    """Returns True for a variable that is neither part of a weight nor of a copied model."""
    is_part = isinstance(weight, (WeightSlice, SplitWeight)) or weight_of(weight) is not None
    return not is_part and _ORIGINALS not in vars(weight)


def variable_name(weight: Any) -> str:
    """Returns the name that the weight's TensorFlow variable has on one device, such as ``"dense/kernel:0"``."""
    if isinstance(weight, WeightSlice):
        return variable_name(weight.variable)
    if _ORIGINAL_NAME in vars(weight):
        return str(vars(weight)[_ORIGINAL_NAME])
    whole = weight if isinstance(weight, SplitWeight) else weight_of(weight)
    if whole is not None and whole is not weight:
        return variable_name(whole)
    if whole is None:
        return str(getattr(weight, "_value", weight).name)
    before, _, last = variable_name_of_shard(whole).rpartition("/")
    number = last.partition(":")[2]
    return "/".join(filter(None, [before, whole.name])) + (f":{number}" if number else "")


def variable_name_of_shard(whole: SplitWeight) -> str:
    """Returns the name of the TensorFlow variable of a weight's first shard."""
    first = whole.shards[0]
    return str(getattr(first, "_value", first).name)


@contextlib.contextmanager
def named_as_wholes(variables: Iterable[Any]) -> Iterator[None]:
    """Context manager: shards have the name and path of their weight, which an optimizer sees on one device when built.

    Args:
        variables: Keras variables and slices of them; those that are not shards stay unchanged.
    """
    with contextlib.ExitStack() as names:
        for each in variables:
            whole = weight_of(each.variable if isinstance(each, WeightSlice) else each)
            if whole is not None and _OWN_NAMES not in vars(each):
                name, path = ("name", "path") if isinstance(each, WeightSlice) else ("_name", "_path")
                own = {name: getattr(each, name), path: getattr(each, path)}
                names.enter_context(_set(each, {name: whole.name, path: whole.path, _OWN_NAMES: own}))
        yield


@contextlib.contextmanager
def named_as_shard(variable: Any) -> Iterator[None]:
    """Context manager in `named_as_wholes`: a shard has its own name again, as its slots do."""
    with _set(variable, vars(variable).get(_OWN_NAMES, {})):
        yield


@contextlib.contextmanager
def named_in_update(target: Any, component: Any) -> Iterator[None]:
    """Context manager: the component in an update has the name that its TensorFlow variable has on one device.

    Args:
        target: a TensorFlow variable with components, a split weight, or a slice.
        component: the component of the target that an optimizer updates.
    """
    attribute = "_handle_name" if isinstance(component, tf.Variable) else "name"
    with _set(component, {attribute: variable_name(target)} if attribute in vars(component) else {}):
        yield


@contextlib.contextmanager
def _set(each: Any, values: Mapping[str, Any]) -> Iterator[None]:
    before = {name: vars(each)[name] for name in values if name in vars(each)}
    vars(each).update(values)
    try:
        yield
    finally:
        for name in values:
            vars(each).pop(name)
        vars(each).update(before)


def _key(weight: Any) -> str:
    return str(getattr(weight, "_value", weight)._unique_id)
