"""Optimizers of a model, made again for its copy: with the same settings and slots, for the copy's weights."""

from __future__ import annotations

import functools
import types
from typing import Any

import keras

from keras_ext.cloning.counterparts import Counterparts
from keras_ext.cloning.state import copy_values
from strategies import layer_api

# Of the exclusion from weight decay, which is in no config. Copies of weights are known by the ids of the old ones.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class OptimizerCopies:
    """Makes optimizers again, each once: what was one object is one.

    Args:
        counterparts: of the model that they train.
    """

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        # With the old ones, so that no other object gets their id.
        self._made: dict[int, tuple[Any, Any]] = {}

    def copied(self, optimizer: Any) -> Any:
        """Returns the copy of an optimizer, not built; anything else as it is."""
        if not isinstance(optimizer, keras.Optimizer):
            return optimizer
        if id(optimizer) not in self._made:
            new = self._chooser(optimizer) if hasattr(optimizer, "_optimizer_map") else again(optimizer)
            self._made[id(optimizer)] = (optimizer, new)
            _exclude_alike(optimizer, new)
        return self._made[id(optimizer)][1]

    def _chooser(self, optimizer: Any) -> Any:
        """One that chooses among others by the variable. Its config has a function by name only."""
        chosen = optimizer._optimizer_map
        if hasattr(chosen, "_optimizer_map"):
            copied = type(chosen)(self.copied(chosen.default_optimizer))
            for key, each in chosen.items():
                copied[key] = self.copied(each)
        else:
            copied = functools.wraps(chosen)(lambda variable: self.copied(chosen(variable)))
        return type(optimizer)(copied, loss_scale_factor=optimizer.loss_scale_factor, name=optimizer.name)

    def finish(self, old: Any, new: Any) -> None:
        """Builds a copy for the counterparts of what the old one was built for, and gives it the slots.

        All processes call this.
        """
        if not old.built:
            return
        if not new.built:
            new.build(self._counterparts.variables_of(_built_for(old)))
        _copy_slots(old, new)
        # As its weights, which need not be the same on all processes.
        layer_api.agree_on(new.variables)


def again(each: Any) -> Any:
    """Returns an optimizer or a metric like another one, without its state."""
    # Its config has these by name only: the function of a metric, the schedule of a learning rate.
    parts = [getattr(each, "_fn", None), getattr(each, "_learning_rate", None), getattr(each, "inner_optimizer", None)]
    parts += [getattr(part, "_learning_rate", None) for part in parts]
    named = [part if isinstance(part, types.FunctionType) else type(part) for part in parts if part is not None]
    with keras.saving.custom_object_scope({part.__name__: part for part in named if not _is_of_keras(part)}):
        try:
            return type(each).from_config(each.get_config())
        except TypeError:
            if isinstance(each, keras.Optimizer):
                raise
            # A metric that does not take what is in its config. `fit` resets its state when an epoch begins.
            return each


def _exclude_alike(old: Any, new: Any) -> None:
    for name in _EXCLUDED:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    if hasattr(old, "inner_optimizer"):
        _exclude_alike(old.inner_optimizer, new.inner_optimizer)


def _built_for(optimizer: Any) -> list[Any]:
    """Returns the variables of the model for which an optimizer was built, which may be slices or split weights."""
    known = [(each, getattr(each, "variable", None)) for each in optimizer._trainable_variables]
    return list({id(v): v for v in (each if variable is None else variable for each, variable in known)}.values())


def _is_of_keras(named: Any) -> bool:
    return str(named.__module__).partition(".")[0] in ("builtins", "keras", "tensorflow")


def _copy_slots(old: Any, new: Any) -> None:
    copy_values(old.variables, new.variables)
    if hasattr(old, "inner_optimizer"):
        _copy_slots(old.inner_optimizer, new.inner_optimizer)
