"""Differences between the supported releases of Keras that concern layers, each with the releases that it concerns.

The rest of this package is written for the newest release. A difference is detected by a name that exists or not;
version numbers are compared only where no name differs. Differences in Keras' training are in
`strategies/_keras_hooks/keras_versions.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

_RELEASE = tuple(int(number) for number in keras.__version__.split(".")[:2])


def has_gate(layer: keras.layers.Layer) -> bool:
    """Returns True if an attention layer multiplies the heads' output by a gate. Keras 3.12 and 3.13 have no gates."""
    return bool(getattr(layer, "_use_gate", False) or getattr(layer, "use_gate", False))


def renormalizes(layer: keras.layers.BatchNormalization) -> bool:
    """Returns True if a batch normalization has ``renorm=True``. Keras 3.12 and 3.13 have no such argument."""
    return bool(getattr(layer, "renorm", False))


class RegularizerOf(keras.regularizers.Regularizer):
    """Wraps a function as the regularizer of a weight. Keras 3.12 to 3.14 take no plain functions."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, x: Any) -> Any:
        """Returns the penalty."""
        return self._function(x)


class ConstraintOf(keras.constraints.Constraint):
    """Wraps a function as the constraint of a weight. Keras 3.12 to 3.14 take no plain functions."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, w: Any) -> Any:
        """Returns the new value of the weight."""
        return self._function(w)


def penalty_of_rows(penalty: Any, output: Any) -> Any:
    """Returns the penalty of a layer's output as Keras adds it to the loss.

    From Keras 3.14 on, the penalty is divided by the number of rows; in Keras 3.12 and 3.13 it is a sum over them.

    Args:
        penalty: the result of the activity regularizer.
        output: the output of the layer, rows first.
    """
    if _RELEASE < (3, 14):
        return penalty
    return ops.divide_no_nan(penalty, ops.cast(ops.shape(output)[0], penalty.dtype))


def causal_arguments(layer: type[keras.layers.Layer], use_causal_mask: bool) -> tuple[dict[str, bool], dict[str, bool]]:
    """Returns the arguments with which an attention layer applies its causal mask.

    From Keras 3.15 on, the computation of the scores takes `use_causal_mask`, and need not make a mask; in Keras 3.12
    to 3.14 the causal mask is part of the attention mask.

    Args:
        layer: the class of Keras' layer.
        use_causal_mask: the argument with which the layer is called.

    Returns:
        The arguments for ``_compute_attention_mask``, and those for ``_compute_attention``.
    """
    argument = {"use_causal_mask": use_causal_mask}
    at_scores = "use_causal_mask" in inspect.signature(layer._compute_attention).parameters
    return ({}, argument) if at_scores else (argument, {})


def initializer_of_sums(layer: keras.layers.EinsumDense, added: Sequence[int], made: Sequence[int]) -> Any:
    """Returns the initializer of an einsum's kernel as Keras' own build chooses it.

    From Keras 3.15 on, the variance depends on the dims that are summed over; in Keras 3.12 to 3.14 on the kernel's
    shape alone.

    Args:
        layer: the layer, in its ``build``.
        added: the dims of the kernel that are summed over.
        made: the other dims of the kernel.
    """
    initializer = layer.kernel_initializer
    if not isinstance(initializer, keras.initializers.VarianceScaling):
        return initializer
    if not hasattr(layer, "_update_kernel_initializer"):
        return initializer
    is_settled = initializer.input_axes is not None and initializer.output_axes is not None
    return initializer if is_settled else layer._update_kernel_initializer(added, made)
