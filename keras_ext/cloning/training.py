"""The optimizer, loss and metrics of a model, handed to its copy."""

from __future__ import annotations

from typing import Any

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
    new.compile_from_config(old.get_compile_config())
    if old.optimizer.built:
        # Counted in the order of the weights, which Keras' own copy would not have yet.
        new.optimizer.build(new.trainable_variables)
        _copy_slots(old.optimizer, new.optimizer)
    # As its weights, which need not be the same on all processes.
    layer_api.agree_on(new.optimizer.variables)


def _copy_slots(old: Any, new: Any) -> None:
    copy_values(old.variables, new.variables)
    if hasattr(old, "inner_optimizer"):
        _copy_slots(old.inner_optimizer, new.inner_optimizer)
