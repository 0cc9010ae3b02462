"""The only hooks into Keras' own classes, each in the file of the class it hooks.

Keras assumes of ``tf.distribute`` what does not hold: that clipping commutes with summing over replicas, that
all replicas hold as many rows, that an iterator can be read ahead without loss. None of it can be changed through
Keras' public interface, so a few of its functions are wrapped. Every wrapper passes straight through unless the
strategy at hand is one of this package's; other strategies, and Keras without one, are untouched. Nothing of it
reaches a saved file. Where the supported releases of Keras differ is in `keras_versions`, and nowhere else.
"""

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks import (
    all_reduces,
    callbacks,
    compiled_steps,
    files,
    gathered_functions,
    gradients,
    held_variables,
    inputs,
    lookups,
    loops,
    losses,
    new_variables,
    norms,
    optimizer_variables,
    optimizers,
    outside_variables,
    plain_classes,
    preprocessing,
    random,
    remat,
    replica_attributes,
    row_counts,
    row_updates,
    sharded_optimizers,
    state_trees,
    stored_values,
    synchronized_norms,
    trackers,
    train_steps,
    trainer,
    weights,
)
from strategies.versions import warn_of_untested

warn_of_untested({"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__})


def install() -> None:
    """Wraps Keras' functions. Called by every strategy's constructor; again does nothing."""
    all_reduces.install()
    callbacks.install()
    compiled_steps.install()
    files.install()
    gathered_functions.install()
    gradients.install()
    held_variables.install()
    inputs.install()
    lookups.install()
    loops.install()
    losses.install()
    new_variables.install()
    norms.install()
    optimizers.install()
    optimizer_variables.install()
    outside_variables.install()
    plain_classes.install()
    preprocessing.install()
    random.install()
    remat.install()
    replica_attributes.install()
    row_counts.install()
    row_updates.install()
    sharded_optimizers.install()
    state_trees.install()
    stored_values.install()
    synchronized_norms.install()
    trackers.install()
    train_steps.install()
    trainer.install()
    weights.install()


__all__ = ["install"]
