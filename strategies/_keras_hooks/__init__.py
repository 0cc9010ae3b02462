"""The only hooks into Keras' own classes, each in the file of the class it hooks.

Keras makes assumptions about ``tf.distribute`` that do not hold: that clipping commutes with summing over replicas,
that all replicas have the same number of rows, that an iterator can be read ahead without loss. Keras' public
interface cannot change them. Models, optimizers and callbacks of our strategies get subclasses of their classes
(`distributed_models`, `distributed_optimizers`, `distributed_callbacks`); all others are Keras' own. Where no object
belongs to a strategy, functions of Keras are wrapped: a wrapper passes straight through unless the current strategy is
one of this package's. Saved files contain nothing of either. `addresses` finds Keras' private modules and classes;
other differences between the supported releases of Keras are in `keras_versions`, and nowhere else.
"""

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks import (
    all_reduces,
    backend_functions,
    callbacks,
    control_dependencies,
    distributed_models,
    distributed_optimizers,
    files,
    gathered_functions,
    gradients,
    graph_errors,
    inputs,
    loops,
    losses,
    new_variables,
    outside,
    owned_variables,
    plain_classes,
    quantization,
    random,
    replica_attributes,
    stored_values,
    synchronized_norms,
    trackers,
    trainer,
    weights,
)
from strategies.versions import warn_of_untested

warn_of_untested({"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__})


def install() -> None:
    """Wraps Keras' functions. Every strategy's constructor calls it; later calls do nothing."""
    all_reduces.install()
    backend_functions.install()
    callbacks.install()
    control_dependencies.install()
    distributed_models.install()
    distributed_optimizers.install()
    files.install()
    gathered_functions.install()
    gradients.install()
    graph_errors.install()
    owned_variables.install()
    inputs.install()
    loops.install()
    losses.install()
    new_variables.install()
    outside.install()
    plain_classes.install()
    quantization.install()
    random.install()
    replica_attributes.install()
    stored_values.install()
    synchronized_norms.install()
    trackers.install()
    trainer.install()
    weights.install()


__all__ = ["install"]
