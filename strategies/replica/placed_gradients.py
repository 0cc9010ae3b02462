"""Computes a function on a device, and its gradient on the same device.

TensorFlow puts the ops of a gradient on the device of the caller of ``tape.gradient``, wherever the ops of the forward
pass are. Under ``tf.device`` alone, a layer that is split over devices has all of its backward pass on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import gradient_record
from strategies.replica.refused_gradients import may_have_gradient


def compute_on(device: str, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Returns ``function(*inputs)``, computed on a device, where a tape then computes its gradient.

    ``tf.custom_gradient`` is not used. In a graph it registers the gradient with the graph, and the gradient needs the
    tape of the forward pass: a cycle through TensorFlow's C++ tape, which Python's garbage collector does not see, so
    that no traced graph would ever be freed. Here only the tapes that record the computation hold the gradient. Code
    that differentiates the graph without a tape, as TensorFlow does with the body of a loop, differentiates the ops of
    `function` themselves: the numbers are the same, on a device of TensorFlow's choice.

    Args:
        device: the device's name.
        function: takes the tensors; returns a nest of tensors.
        inputs: tensors, or variables, which are read on the device. Nothing else that `function` reads gets a gradient.
    """
    with tf.device(device):
        tensors = [tf.convert_to_tensor(value) for value in inputs]
        sources = [tensor for tensor in tensors if may_have_gradient(tensor)]
        if not gradient_record.should_record_backprop(sources):
            return function(*tensors)
        # Persistent, since the tapes that record this may be.
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = function(*with_distinct_gradients(tensors))
        flat = tf.nest.flatten(outputs)
        differentiable = [index for index, output in enumerate(flat) if may_have_gradient(output)]
        targets = [flat[index] for index in differentiable]

        def backward(*upstream: Any) -> list[Any]:
            with tf.device(device):
                found: list[Any] = tape.gradient(
                    targets, sources, list(upstream), unconnected_gradients=tf.UnconnectedGradients.ZERO
                )
                return found

        with gradient_record.stop_recording():
            results = [tf.identity(target) for target in targets]
        gradient_record.record_operation("ComputeOn", results, sources, backward)
        for index, result in zip(differentiable, results, strict=True):
            flat[index] = result
        return tf.nest.pack_sequence_as(outputs, flat)


def with_distinct_gradients(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns copies of tensors; no two of the tensors then get the same object as their gradient.

    Call it under a tape that watches the tensors, and compute with the copies. ``tape.gradient`` counts one reference
    too many to a gradient that two sources have in common, as those of ``a + b`` do (TensorFlow 2.21,
    ``TFE_Py_TapeGradient``): that tensor is never freed, nor is its graph.
    """
    if sum(map(may_have_gradient, tensors)) < 2:
        return list(tensors)
    return [_copied(tensor) if may_have_gradient(tensor) else tensor for tensor in tensors]


def _copied(tensor: tf.Tensor) -> tf.Tensor:
    with gradient_record.stop_recording():
        copy = tf.identity(tensor)
    gradient_record.record_operation("WithDistinctGradient", [copy], [tensor], lambda gradient: [tf.identity(gradient)])
    return copy
