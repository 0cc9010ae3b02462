"""Differences between the supported releases of Keras, in one place, each with the releases that it concerns.

The rest of the package is written as for the newest release, and asks for a release nowhere. Every difference is
found by looking for the name, not by comparing numbers of versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers import loss_scale_optimizer
from keras.src.random import seed_generator
from keras.src.utils import tracking

try:
    from keras.src.optimizers.multi_optimizer import MultiOptimizer
except ImportError:
    _MULTI_OPTIMIZERS: tuple[type[keras.Optimizer], ...] = ()
else:
    _MULTI_OPTIMIZERS = (MultiOptimizer,)

#: Optimizers that hand all of their gradients to others. Keras 3.12 to 3.14 have no `MultiOptimizer`.
WRAPPING_OPTIMIZERS = (loss_scale_optimizer.LossScaleOptimizer, *_MULTI_OPTIMIZERS)

#: The callback that writes folders of Orbax. Keras 3.12 has none.
ORBAX_CHECKPOINTS: tuple[type[keras.callbacks.Callback], ...] = (
    (keras.callbacks.OrbaxCheckpoint,) if hasattr(keras.callbacks, "OrbaxCheckpoint") else ()
)

#: The name of the random generator in Keras' global state. Keras 3.12 has no constant for it.
GLOBAL_SEED_GENERATOR: str = getattr(seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator")


def sort_layers(model: keras.Model, key: Callable[[keras.layers.Layer], Any]) -> None:
    """Sorts the list of layers by which a model counts its weights, as ``list.sort`` does.

    In Keras 3.12 to 3.14 the list of a Functional model is one of TensorFlow's, which cannot be sorted by a key, nor be
    changed in place without leaving checkpoints of TensorFlow: another is set, as Keras set it. In Keras 3.15, and in
    Sequential models, it belongs to Keras' own tracking, which has to keep the one it has.
    """
    layers = model._layers
    if isinstance(layers, tf.__internal__.tracking.Trackable):
        with tracking.DotNotTrackScope():
            model._layers = sorted(layers, key=key)
    else:
        layers.sort(key=key)
