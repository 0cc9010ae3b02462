"""The optimizer, loss and metrics of a model, handed to its copy."""

from __future__ import annotations

import types
from typing import Any

import keras

from keras_ext.cloning.state import copy_values
from strategies import layer_api


def copy_training(old: Any, new: Any) -> None:
    """Compiles a copy as a model was, with all slots of its optimizer; nothing if it was not.

    All processes call this.

    Args:
        old: the model.
        new: its copy, whose weights are in the same order.
    """
    if not getattr(old, "compiled", False):
        return
    if type(old).compile is type(new).compile is keras.Model.compile:
        # Not through `get_compile_config`, which knows functions and classes by name, and only registered ones.
        new.compile(**_arguments(old))
    else:
        new.compile_from_config(old.get_compile_config())
    # Counted in the order of the weights, which Keras' own copy would not have yet; and saved as when a file is opened.
    new.optimizer.build(new.trainable_variables)
    if old.optimizer.built:
        _copy_slots(old.optimizer, new.optimizer)
    # As its weights, which need not be the same on all processes.
    layer_api.agree_on(new.optimizer.variables)


def _arguments(model: Any) -> dict[str, Any]:
    """Returns the arguments with which a model was compiled; what has state is made again, without it."""
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    given = {**model._compile_config.config, "auto_scale_loss": scales}
    for name in ("optimizer", "metrics", "weighted_metrics"):
        given[name] = keras.tree.map_structure(_made_again, given[name])
    return given


def _made_again(each: Any) -> Any:
    if not isinstance(each, (keras.Optimizer, keras.Metric)):
        return each
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


def _is_of_keras(named: Any) -> bool:
    return str(named.__module__).partition(".")[0] in ("builtins", "keras", "tensorflow")


def _copy_slots(old: Any, new: Any) -> None:
    copy_values(old.variables, new.variables)
    if hasattr(old, "inner_optimizer"):
        _copy_slots(old.inner_optimizer, new.inner_optimizer)
