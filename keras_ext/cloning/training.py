"""Copies the optimizer, loss and metrics of a model to its copy."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from keras_ext.cloning.counterparts import Counterparts
from keras_ext.cloning.optimizers import OptimizerCopies, recreated
from keras_ext.cloning.structure import CannotCopyError
from strategies import layer_api


def copy_training(old: Any, new: Any) -> None:
    """Compiles a copy like the model, with all slots of its optimizers; does nothing if the model is not compiled.

    A class with a `compile` of its own keeps what it needs in attributes, which the copy has, and passes the rest to
    Keras' `compile`. Only Keras' `compile` is called again, since the arguments of the class' own are not kept.

    All processes call this.

    Args:
        old: the model.
        new: its copy, whose weights are in the same order.
    """
    counterparts = Counterparts(old, new)
    optimizers = OptimizerCopies(counterparts)
    held = _take_optimizers(new, optimizers)
    if not getattr(old, "compiled", False):
        return
    try:
        given = _arguments(old, counterparts, optimizers)
    except CannotCopyError as error:
        warnings.warn(
            f"The copy of {old.name!r} is not compiled, since what it was compiled with works with the model itself: "
            f"{error} Call compile of the copy, with what works with the copy.",
            stacklevel=3,
        )
        return
    keras.Model.compile(new, **given)
    # An optimizer of a preset, which KerasHub has chosen, is often replaced before it gets slots.
    if not old.optimizer.built and not any(map(layer_api.is_left_in_file, old.variables)):
        # Slots in the order of the weights, as in a model that is loaded from a file.
        new.optimizer.build(new.trainable_variables)
        layer_api.agree_on(new.optimizer.variables)
    for one, other in {id(one): (one, other) for one, other in [(old.optimizer, new.optimizer), *held]}.values():
        optimizers.finish(one, other)


def _take_optimizers(new: Any, optimizers: OptimizerCopies) -> list[tuple[Any, Any]]:
    """Replaces optimizers in a copy's attributes by copies of them, and returns the pairs (original, copy)."""
    found: list[tuple[Any, Any]] = []

    def made(value: Any) -> Any:
        copied = optimizers.copied(value)
        if copied is not value:
            found.append((value, copied))
        return copied

    for layer in new._flatten_layers():
        for name, value in list(vars(layer).items()):
            if name != "optimizer" and any(isinstance(each, keras.Optimizer) for each in _items(value)):
                setattr(layer, name, keras.tree.map_structure(made, value))
    return found


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _arguments(model: Any, counterparts: Counterparts, optimizers: OptimizerCopies) -> dict[str, Any]:
    """Returns the arguments with which Keras compiled a model; objects with state are copied without it.

    Raises:
        CannotCopyError: a function compiled by TensorFlow uses the model.
    """
    # Not `get_compile_config`, which has functions and classes by name, and only registered ones.
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    given = {**model._compile_config.config, "auto_scale_loss": scales}
    # The optimizer itself, not a name that `compile` may have got: settings such as the learning rate may have changed.
    given["optimizer"] = optimizers.copied(model.optimizer)
    given["loss"] = counterparts.get(given["loss"])
    for name in ("metrics", "weighted_metrics"):
        given[name] = keras.tree.map_structure(lambda each: _metric(each, counterparts), given[name])
    return given


def _metric(each: Any, counterparts: Counterparts) -> Any:
    return recreated(each) if isinstance(each, keras.Metric) else counterparts.get(each)
