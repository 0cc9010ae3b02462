"""Tensors whose gradients are refused, because they came from other processes, in messages without a gradient.

TensorFlow would find no gradient, report it on some processes and silently ignore it on others. A gradient that is
refused here is refused on all of them, whatever each has computed itself.

Its contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
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


def refuse_gradients(
    tensors: Sequence[Any], inputs: Sequence[Any], variables: Sequence[Any], message: str
) -> list[Any]:
    """Returns tensors with the values of ``tensors``, which refuse to be differentiated.

    A ``ValueError`` with the message is raised if their gradient is taken with respect to one of the inputs or
    variables, or to anything on which an input depends.

    Args:
        tensors: computed inside :func:`unrecorded`; integers and the like are returned
            unchanged.
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
