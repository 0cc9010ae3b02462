"""Variables whose gradient is their next value, such as the scales of float8 layers.

Keras marks them ``overwrite_with_gradient``. Several of their gradients, of replicas, micro-batches or steps, are
combined by the maximum, as Keras combines those of steps: each replica finds the largest absolute value of its own
rows, and one device would find the largest of all rows. Scales are computed from values of earlier steps, and are the
same on all replicas.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_warnings import warn

_OWNER = "_keras_strategies_owner"


def note_owner(variable: Any, owner: Any) -> None:
    """Records the Keras variable that owns a TensorFlow variable. Keras marks its own, after both are made."""
    vars(variable)[_OWNER] = weakref.ref(owner)


def is_overwritten(variable: Any) -> bool:
    """Returns True if a Keras or TensorFlow variable, or the variable of a slice, is replaced by its gradient."""
    return bool(getattr(_owner_of(variable), "overwrite_with_gradient", False))


def _owner_of(variable: Any) -> Any:
    """Returns the Keras variable that owns a TensorFlow variable; any other variable unchanged."""
    reference = getattr(variable, "__dict__", {}).get(_OWNER)
    return variable if reference is None else reference()


def warn_if_summed(gradient: Any, variable: Any, dependence: RowDependence) -> None:
    """Warns if the gradient that replaces a variable is a sum of several gradients, and so is not a valid value.

    A tape adds up the gradients of a layer that is called several times. The maximum of the replicas' sums is not the
    sum of the maxima over all rows.
    """
    if not isinstance(gradient, tf.Tensor) or not is_overwritten(variable):
        return
    made = dependence.made(gradient)
    if made is not None and made.type in ("AddN", "AddV2"):
        path = getattr(_owner_of(variable), "path", "a scale")
        warn(
            f"The layer of {path!r} is called several times in a step. Keras then adds up its float8 scales, each of "
            "which is the next value, and replicas or micro-batches take the maximum of their own sums, which is not "
            "that of one device",
            "Make a layer for each call, or leave this one out of quantize('float8').",
        )


def maximum(gradients: Sequence[Any]) -> Any:
    """Returns the elementwise maximum of one variable's gradients, on the caller's device; None if there are none."""
    known = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if not known:
        return None
    return known[0] if len(known) == 1 else tf.reduce_max(tf.stack(known), axis=0)


def no_maximum(variable: Any) -> tf.Tensor:
    """Returns the neutral element of the maximum, in a variable's shape: the lowest value of its dtype."""
    return tf.fill(variable.shape, variable.dtype.min)
