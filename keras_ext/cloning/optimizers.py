"""Copies of a model's optimizers for the weights of the model's copy, with the same settings and slots."""

from __future__ import annotations

import functools
import types
from typing import Any

import keras

from keras_ext.cloning.counterparts import Counterparts
from keras_ext.cloning.state import copy_values
from strategies import layer_api

# The exclusions from weight decay, which are in no config. The ids in them also match the copies of these weights.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class OptimizerCopies:
    """Copies optimizers, each once: an optimizer that is used twice has one copy.

    Args:
        counterparts: maps the weights of the trained model to those of its copy.
    """

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        # Holds the old objects as well, so that no other object gets their id.
        self._made: dict[int, tuple[Any, Any]] = {}

    def copied(self, optimizer: Any) -> Any:
        """Returns the copy of an optimizer, not built; returns anything else unchanged."""
        if not isinstance(optimizer, keras.Optimizer):
            return optimizer
        if id(optimizer) not in self._made:
            new = self._chooser(optimizer) if hasattr(optimizer, "_optimizer_map") else recreated(optimizer)
            self._made[id(optimizer)] = (optimizer, new)
            _exclude_alike(optimizer, new)
        return self._made[id(optimizer)][1]

    def _chooser(self, optimizer: Any) -> Any:
        """Copies an optimizer that chooses another one for each variable. Its config has functions by name only."""
        chosen = optimizer._optimizer_map
        if hasattr(chosen, "_optimizer_map"):
            copied = type(chosen)(self.copied(chosen.default_optimizer))
            for key, each in chosen.items():
                copied[key] = self.copied(each)
        else:
            copied = functools.wraps(chosen)(lambda variable: self.copied(chosen(variable)))
        return optimizer.__class__(copied, loss_scale_factor=optimizer.loss_scale_factor, name=optimizer.name)

    def finish(self, old: Any, new: Any) -> None:
        """Builds a copy for the counterparts of the variables that `old` was built for, and copies the slots.

        All processes call this.
        """
        if not old.built:
            return
        if not new.built:
            new.build(self._counterparts.variables_of(_built_for(old)))
        _copy_slots(old, new)
        # Like the model's weights, the old slots may differ between processes.
        layer_api.agree_on(new.variables)


def recreated(each: Any) -> Any:
    """Returns a copy of an optimizer or a metric, without its state."""
    # The config has these by name only: the function of a metric, the schedule of a learning rate.
    parts = [getattr(each, "_fn", None), getattr(each, "_learning_rate", None), getattr(each, "inner_optimizer", None)]
    parts += [getattr(part, "_learning_rate", None) for part in parts]
    named = [part if isinstance(part, types.FunctionType) else type(part) for part in parts if part is not None]
    with keras.saving.custom_object_scope({part.__name__: part for part in named if not _is_of_keras(part)}):
        try:
            return each.__class__.from_config(each.get_config())
        except TypeError:
            if isinstance(each, keras.Optimizer):
                raise
            # A metric whose constructor does not take its config is shared: `fit` resets its state in every epoch.
            return each


def _exclude_alike(old: Any, new: Any) -> None:
    for name in _EXCLUDED:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    if hasattr(old, "inner_optimizer"):
        _exclude_alike(old.inner_optimizer, new.inner_optimizer)


def _built_for(optimizer: Any) -> list[Any]:
    """Returns the model's variables for which an optimizer was built. It may hold slices or split weights of them."""
    known = [(each, getattr(each, "variable", None)) for each in optimizer._trainable_variables]
    return list({id(v): v for v in (each if variable is None else variable for each, variable in known)}.values())


def _is_of_keras(named: Any) -> bool:
    return str(named.__module__).partition(".")[0] in ("builtins", "keras", "tensorflow")


def _copy_slots(old: Any, new: Any) -> None:
    copy_values(old.variables, new.variables)
    if hasattr(old, "inner_optimizer"):
        _copy_slots(old.inner_optimizer, new.inner_optimizer)
