"""Computations as gradient tapes record them: not at all, with the gradient on the same device, or with a refused one.

Gradients are refused of tensors that came from other processes, in messages without a gradient. TensorFlow would find
none, report it on some processes and silently ignore it on others. A gradient that is refused here is refused on all of
them, whatever each has computed itself. That contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from strategies._tf_internals import gradient_record, gradient_tape, pywrap_tfe
from strategies.replica.deferred import component_of, is_remote


def unrecorded() -> contextlib.AbstractContextManager[None]:
    """Context manager: no tape records the computations of the block."""
    context: contextlib.AbstractContextManager[None] = gradient_record.stop_recording()
    return context


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Context manager: tapes record again, inside a block of :func:`unrecorded`."""
    was_stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if was_stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def may_have_gradient(tensor: Any) -> bool:
    """Returns True if a tensor may have a gradient: a floating-point or complex one."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def compute_on(device: str, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Returns ``function(*inputs)``, computed on a device, where a tape then computes its gradient.

    TensorFlow puts the ops of a gradient on the device of the caller of ``tape.gradient``, wherever the ops of the
    forward pass are. Under ``tf.device`` alone, a layer that is split over devices has all of its backward pass on one
    of them.

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


def refuse_gradients(
    tensors: Sequence[Any], inputs: Sequence[Any], variables: Sequence[Any], message: str
) -> list[Any]:
    """Returns tensors with the values of ``tensors``, which refuse to be differentiated.

    A ``ValueError`` with the message is raised if their gradient is taken with respect to one of the inputs or
    variables, or to anything on which an input depends.

    Args:
        tensors: computed inside :func:`unrecorded`; integers and the like are returned unchanged.
        inputs: tensors that they depend on, or None.
        variables: the Keras variables that they depend on, on any process.
        message: the message of the error.
    """
    wanted = [i for i, each in enumerate(tensors) if may_have_gradient(each)]
    if not wanted or (tf.executing_eagerly() and not gradient_record.could_possibly_record()):
        return list(tensors)
    sources = [each for each in inputs if each is not None and may_have_gradient(each)]
    made = list(tensors)
    refuse = _refused if tf.executing_eagerly() else _refused_in_graph
    for i, each in zip(wanted, refuse([tensors[i] for i in wanted], sources, variables, message), strict=True):
        made[i] = each
    return made


def _refused(tensors: Sequence[Any], inputs: Sequence[Any], variables: Sequence[Any], message: str) -> list[Any]:
    components = [component_of(variable) for variable in variables]
    for component in components:
        # Reported to the tape as if read here, since other processes own some of them.
        gradient_tape.variable_accessed(component)
    made = [tf.identity(each) for each in tensors]
    sources = [*tensors, *inputs, *(component.handle for component in components)]
    gradient_record.record_operation("RefusedGradient", made, sources, _raising(message))
    return made


def _refused_in_graph(
    tensors: Sequence[Any], inputs: Sequence[Any], variables: Sequence[Any], message: str
) -> list[Any]:
    """Does the same as `_refused`, also when the graph is differentiated later: the op depends on all sources."""

    def refused(function: Callable[..., Any]) -> Callable[..., Any]:
        return tf.custom_gradient(lambda *given: (function(*given), _raising(message)))

    nothing = [tf.reshape(each, [-1])[:0] for each in inputs]
    for variable in variables:
        component = component_of(variable)
        with tf.device(component.device):
            if is_remote(variable):
                gradient_tape.variable_accessed(component)
                nothing.append(refused(lambda _: tf.zeros([0]))(tf.identity(component.handle)))
            else:
                nothing.append(tf.reshape(component.read_value(), [-1])[:0])
    count = len(tensors)
    return list(refused(lambda *given: list(given[:count]))(*tensors, *nothing))


def _raising(message: str) -> Callable[..., NoReturn]:
    def backward(*_: Any) -> NoReturn:
        raise ValueError(message)

    return backward
