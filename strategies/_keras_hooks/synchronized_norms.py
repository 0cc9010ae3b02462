"""``BatchNormalization(synchronized=True)``: one all-reduce per layer for the forward pass, one for the backward pass.

Keras all-reduces three sums one by one: of the values, of their squares, and their number.

Without ``synchronized``, the layer normalizes over the rows of its replica, as documented: that is not a finding. In a
pipeline, micro-batches run one after the other, so a synchronized layer does not see all of them: that is a finding. So
is ``SpectralNormalization`` in a pipeline: it updates its kernel once per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import BatchNormalization, tf_nn
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import warn
from strategies.collectives.descriptions import listed
from strategies.engine.engine import engine_of
from strategies.engine.strategy import Finding

_SUM = tf.distribute.ReduceOp.SUM
_Moments = tuple[tf.Tensor, tf.Tensor]


def install() -> None:
    """Wraps the computation of mean and variance over all replicas, and the layer's call."""
    wrap(tf_nn, "_compute_moments_sync", _moments)
    wrap(BatchNormalization, "call", _call)


def _call(
    original: Callable[Concatenate[keras.layers.BatchNormalization, tf.Tensor, Rest], tf.Tensor],
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> tf.Tensor:
    outputs = original(layer, inputs, *args, **kwargs)
    dependence = shares.known_dependence()
    if dependence is not None and dependence.kind(inputs) is Kind.ROWS:
        mark(outputs, Kind.ROWS)
    return outputs


def _moments(original: Callable[..., _Moments], x: tf.Tensor, axes: Sequence[int], keepdims: bool) -> _Moments:
    context: Any = tf.distribute.get_replica_context()
    if context is None or engine_of(context.strategy) is None:
        return original(x, axes, keepdims)
    # The same arithmetic as Keras', for bit-equal results.
    count = tf.reduce_sum(tf.ones_like(x), axis=axes, keepdims=True)
    total = tf.reduce_sum(x, axis=axes, keepdims=True)
    squares = tf.reduce_sum(tf.square(x), axis=axes, keepdims=True)
    total, squares, count = context.all_reduce(_SUM, [total, squares, count])
    # The number of entries has no gradient.
    count = tf.stop_gradient(count)
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


_SYNCHRONIZED = (
    "BatchNormalization(synchronized=True) normalizes by the rows of all replicas in each of {number} micro-batches, "
    "one after the other: not by the global batch, as one device does.",
    "Use num_microbatches=1, or a layer that normalizes each row by itself, such as LayerNormalization or "
    "GroupNormalization. If statistics of micro-batches are what you mean, leave synchronized=True out.",
)
_SPECTRAL = (
    "SpectralNormalization divides its kernel by an estimate of the kernel's norm, and refines the estimate, in each "
    "of {number} micro-batches: one device does so once for the batch.",
    "Use num_microbatches=1.",
)


def norms_of_microbatches(model: Any) -> list[Finding]:
    """Returns the layers of a pipeline that normalize once per micro-batch, while one device normalizes once per batch.

    Args:
        model: a Keras model; without an attribute ``num_microbatches`` there are no findings.
    """
    number = int(getattr(model, "num_microbatches", 1))
    found: list[Finding] = []
    for layer in [] if number == 1 else model._flatten_layers():
        if isinstance(layer, keras.layers.SpectralNormalization):
            difference, fix = _SPECTRAL
        elif isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized and layer.trainable:
            difference, fix = _SYNCHRONIZED
        else:
            continue
        found.append(Finding(getattr(layer, "path", None) or layer.name, difference.format(number=number), fix))
    return found


def warn_of_norms(model: Any) -> None:
    """Warns before training, with the program's line, of the layers that :func:`norms_of_microbatches` finds."""
    by_difference: dict[tuple[str, str], list[str]] = {}
    for finding in norms_of_microbatches(model):
        by_difference.setdefault((finding.difference, finding.fix), []).append(repr(finding.layer))
    for (difference, fix), names in by_difference.items():
        warn(f"The pipeline {model.name!r} with {listed(names, at_most=4)}: {difference.removesuffix('.')}", fix)
