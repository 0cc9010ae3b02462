"""Variables whose gradient is their next value, such as the scales of float8 layers.

Keras marks them ``overwrite_with_gradient``. Several of their gradients, of replicas, micro-batches or steps, are
joined by the maximum, as Keras joins those of steps: each replica's largest absolute value is of its own rows, and one
device sees the largest of all rows; scales are computed from values of earlier steps, and are the same on all replicas.
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
    """Notes the Keras variable that owns one of TensorFlow: Keras marks its own, after both are made."""
    vars(variable)[_OWNER] = weakref.ref(owner)


def is_overwritten(variable: Any) -> bool:
    """True of a variable, of Keras or TensorFlow, or a slice of one, that is replaced by its gradient."""
    return bool(getattr(_owner_of(variable), "overwrite_with_gradient", False))


def _owner_of(variable: Any) -> Any:
    """Returns the Keras variable that owns one of TensorFlow; any other variable as it is."""
    reference = getattr(variable, "__dict__", {}).get(_OWNER)
    return variable if reference is None else reference()


def warn_if_summed(gradient: Any, variable: Any, dependence: RowDependence) -> None:
    """Warns of the gradient of a variable that is replaced by it, if it is the sum of several: then that is no value.

    A tape adds gradients up where a layer is called several times. The sum of replicas' maxima is not the maximum of a
    sum.
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
    """Returns the elementwise maximum of gradients of one variable, on the device of the caller; None of none."""
    known = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if not known:
        return None
    return known[0] if len(known) == 1 else tf.reduce_max(tf.stack(known), axis=0)


def no_maximum(variable: Any) -> tf.Tensor:
    """Returns the value, of a variable's shape, which the maximum with any other is that other."""
    return tf.fill(variable.shape, variable.dtype.min)
