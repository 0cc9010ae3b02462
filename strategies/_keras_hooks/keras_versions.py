"""Differences between the supported releases of Keras, each with the releases that it concerns.

The rest of the package is written for the newest release, and checks for a release nowhere. Every difference is
detected by a name that exists or not, not by comparing version numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import (
    DotNotTrackScope,
    MultiOptimizer,
    Trainer,
    keras_loss,
    keras_losses,
    seed_generator,
    tf_core,
    tf_ops,
)

#: Empty before Keras 3.15.
MULTI_OPTIMIZERS: tuple[type[keras.Optimizer], ...] = () if MultiOptimizer is None else (MultiOptimizer,)

#: Optimizers that pass all of their gradients to others. Keras 3.12 to 3.14 have no `MultiOptimizer`.
WRAPPING_OPTIMIZERS = (keras.optimizers.LossScaleOptimizer, *MULTI_OPTIMIZERS)

#: The callback that writes Orbax checkpoints. Keras 3.12 has none.
ORBAX_CHECKPOINTS: tuple[type[keras.callbacks.Callback], ...] = (
    (keras.callbacks.OrbaxCheckpoint,) if hasattr(keras.callbacks, "OrbaxCheckpoint") else ()
)

#: The name of the random generator in Keras' global state. Keras 3.12 has no constant for it.
GLOBAL_SEED_GENERATOR: str = getattr(seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator")

#: Modules by which Keras calls `shape`: from Keras 3.16 on, also the package of all operations.
SHAPE_MODULES: tuple[Any, ...] = (tf_core,) if tf_ops is None else (tf_core, tf_ops)

#: The module by which Keras calls `remat`.
REMAT_MODULE: Any = tf_core if tf_ops is None else tf_ops

#: Modules in which losses are reduced. From Keras 3.16 on, one in the module of Keras' own losses is reduced there.
LOSS_MODULES: tuple[Any, ...] = tuple(
    module for module in (keras_loss, keras_losses) if hasattr(module, "reduce_weighted_values")
)

#: True if Keras draws a batch in the graph of a step, so that a step begins before it finds that no batch is left. From
#: Keras 3.16 on, where `Trainer` is called `BaseTrainer`, it draws before the step.
DRAWS_IN_STEP: bool = Trainer.__name__ == "Trainer"


def decay_rule(optimizer: keras.Optimizer, use: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a function that decides by its key and name if a weight decays that is not among the optimizer's own.

    From Keras 3.16 on, `_use_weight_decay` looks its own weights up, and `_is_excluded_from_weight_decay` decides.

    Args:
        optimizer: the optimizer.
        use: Keras' `_use_weight_decay` of the optimizer.
    """
    is_excluded = _exclusion(optimizer)
    return use if is_excluded is None else lambda weight: not is_excluded(weight)


def decay_name(optimizer: keras.Optimizer, weight: Any, variable_name: str) -> str:
    """Returns the name by which Keras decides if a weight decays.

    Up to Keras 3.15, it is the name of TensorFlow's variable, such as "dense/kernel:0". From Keras 3.16 on, an
    optimizer decides when it is built, by the name of Keras' variable: "kernel".

    Args:
        optimizer: the optimizer.
        weight: what the optimizer is built for: a variable of Keras, or of TensorFlow.
        variable_name: the name of TensorFlow's variable.
    """
    if _exclusion(optimizer) is None or isinstance(weight, tf.Variable):
        return variable_name
    return variable_name.rpartition("/")[2].partition(":")[0]


def _exclusion(optimizer: keras.Optimizer) -> Callable[[Any], bool] | None:
    return getattr(optimizer, "_is_excluded_from_weight_decay", None)


def sort_layers(model: keras.Model, key: Callable[[keras.layers.Layer], Any]) -> None:
    """Sorts the list of layers that determines the order of a model's weights, as ``list.sort`` does.

    In Keras 3.12 to 3.14, a Functional model has a list of TensorFlow's tracking, which cannot be sorted by a key, and
    which TensorFlow's checkpoints refuse once it has been changed in place: a new list is set, as Keras does. In Keras
    3.15, and in Sequential models, the list belongs to Keras' own tracking, and has to remain the same object.
    """
    layers = model._layers
    if isinstance(layers, tf.__internal__.tracking.Trackable):
        with DotNotTrackScope():
            model._layers = sorted(layers, key=key)
    else:
        layers.sort(key=key)
