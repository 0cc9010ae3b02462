"""Recomputation: a computation holds only its inputs until the backward pass, where it is computed a second time.

Its contract is tested in ``tests/keras_ext/test_rematerialization.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import gradient_record
from strategies.replica.parts import current_parts
from strategies.replica.pass_context import pass_context, tracing_pass
from strategies.replica.passes import Recompute
from strategies.replica.recording import may_have_gradient, refuse_gradients, unrecorded

_SECOND_ORDER = (
    "A gradient of a gradient, as for a penalty of gradients, is taken through a layer that is recomputed in the "
    "backward pass. Leave the layer out of rematerialize."
)
#: The attribute of a graph with the tensors put on the host, by replica, in the order of the forward pass.
_ON_HOST = "_keras_strategies_on_host"


class _OnHost:
    """Tensors that are offloaded to the host.

    Args:
        tensors: tensors on a device, to which they are copied back.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._devices = [tensor.device for tensor in tensors]
        with tf.device("CPU:0"):
            # Not an identity: TensorFlow would find that the tensor is on the device already, and drop the copies.
            self._waiting = [tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape) for tensor in tensors]
        self._fetched: list[Any] | None = None

    def fetch(self, after: Sequence[Any]) -> list[Any]:
        """Copies the tensors back to their device, after the given tensors; later calls return the same copies."""
        if self._fetched is None:
            self._fetched = []
            for tensor, device in zip(self._waiting, self._devices, strict=True):
                with tf.control_dependencies(after), tf.device(device or None):
                    self._fetched.append(tf.identity(tensor))
        return self._fetched


def _on_host(replica: int, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """Offloads inputs to the host; returns a function that fetches them, and prefetches those of the previous call."""
    # An attribute of the graph, to be freed with it: the tensors refer to the graph.
    graph = tf.compat.v1.get_default_graph()
    by_replica: dict[int, list[_OnHost]] = getattr(graph, _ON_HOST, {})
    setattr(graph, _ON_HOST, by_replica)
    before = by_replica.setdefault(replica, [])
    position = len(before)
    before.append(_OnHost(inputs))

    def fetch(upstream: Sequence[Any]) -> list[Any]:
        own = before[position].fetch(upstream)
        if position:
            before[position - 1].fetch(upstream)
        return own

    return fetch


def may_recompute(values: Sequence[Any]) -> bool:
    """Returns True in a graph, such as a training step's, in which a tape may record computations on ``values``.

    It is False if one of them is ragged or sparse: a function would get its component tensors.
    """
    if any(isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) for value in values):
        return False
    return not tf.executing_eagerly() and bool(gradient_record.could_possibly_record())


def check_seeded() -> None:
    """Refuses a draw from Keras' global generator in a recomputed computation: its state belongs to no layer.

    Raises:
        ValueError: the current computation will be recomputed.
    """
    if pass_context().is_recomputed:
        raise ValueError(
            "A layer that is recomputed in the backward pass draws random numbers without a seed of its own, and "
            "would draw others there. Give the layer a keras.random.SeedGenerator, and pass it as `seed`; or leave it "
            "out of rematerialize. Received: a draw with seed=None."
        )


def _with_own_seeds(function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    def checked(*given: Any) -> Sequence[Any]:
        with tracing_pass(is_recomputed=True):
            return function(*given)

    return checked


def _first_order(gradients: list[Any], sources: Sequence[Any]) -> list[Any]:
    """Returns first-order gradients only, which refuse to be differentiated: no tape records the recomputation."""
    dense = [i for i, each in enumerate(gradients) if isinstance(each, tf.Tensor)]
    sources = [each for each in sources if may_have_gradient(each)]
    kept = refuse_gradients([gradients[i] for i in dense], sources, [], _SECOND_ORDER)
    for i, each in zip(dense, kept, strict=True):
        gradients[i] = each
    return gradients


def recomputed(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    variables: Sequence[Any],
    state: Sequence[Any],
    recompute: Callable[..., Sequence[Any]],
    *,
    offload: bool = False,
) -> list[Any]:
    """Returns ``function(*tensors)``, which is computed a second time when its gradient is taken.

    Call it in a graph.

    Args:
        function: takes and returns tensors. It may read `variables`, and read and change `state`.
        tensors: the inputs, which can have gradients.
        variables: the trained Keras variables that `function` reads.
        state: the other Keras variables, among them the seeds of draws.
        recompute: takes the values of `state` from before the call, as a list, and the tensors; returns the same as
            `function`, and has no side effects.
        offload: hold the tensors in the host's memory.

    Source: Chen et al., arXiv:1604.06174. The interface is that of ``tf.recompute_grad``, which draws other numbers the
    second time, and changes state twice.
    """
    parts, num_tensors = current_parts(), len(tensors)
    local_part = parts.local_part()
    part = parts.owned[0] if local_part is None else local_part
    # TensorFlow's variables: under autocast, Keras' variables would return cast values.
    values = [variable._value for variable in variables]

    def read_state() -> list[Any]:
        return [tf.stop_gradient(tf.convert_to_tensor(variable._value)) for variable in state]

    hold = functools.partial(_on_host, parts.replica) if offload else None
    recomputation = Recompute(read_state, _with_own_seeds(recompute), hold)
    # As functions: TensorFlow would find that two computations in line are the same, and merge them.
    passes = parts.passes(part, _with_own_seeds(function), values, recompute=recomputation, in_line=False)

    @tf.custom_gradient
    def computed(*given: Any) -> tuple[list[Any], Callable[..., Any]]:
        with unrecorded():
            outputs, vjp = passes(given[:num_tensors])

        def backward(*upstream: Any, variables: Sequence[Any] | None = None) -> Any:
            with unrecorded():
                tensor_gradients, variable_gradients = vjp(upstream)
            gradients = _first_order([*tensor_gradients, *variable_gradients], [*given[num_tensors:], *upstream])
            # Gradients of variables are returned for the values that were read outside.
            return gradients if variables is None else (gradients, [None] * len(variables))

        return outputs, backward

    return list(computed(*tensors, *map(tf.convert_to_tensor, values)))
