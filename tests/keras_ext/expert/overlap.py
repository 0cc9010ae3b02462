"""Checks the graph of a training step of a mixture with a shared expert: its products and the exchange can overlap.

For tests in one process and in several. TensorFlow's executor runs ops concurrently if the graph has no path between
them, neither of tensors nor of control edges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

import keras_ext

EXPERTS, FEATURES, LENGTH, ROWS = 4, 8, 4, 8


def model(strategy: Any) -> Any:
    """Returns a compiled model with one mixture, after a layer that needs the mixture's gradient."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((LENGTH, FEATURES))
        mixture = keras_ext.MixtureOfExperts(EXPERTS, 16, shared_hidden_dim=24, name="experts")
        outputs = keras.layers.Dense(FEATURES)(mixture(keras.layers.Dense(FEATURES, "tanh")(inputs)))
        made = keras.Model(inputs, outputs)
        keras_ext.track_expert_load(made)
        made.compile("adam", "mse")
    return made


def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, LENGTH, FEATURES)).astype("float32")


def assert_apart(graph: Any, num_replicas_here: int) -> None:
    """Asserts that the graph of a step has no path between products of the shared expert and exchanges of tokens."""
    exchanges = [op for op in graph.get_operations() if _exchanges_tokens(op)]
    products = [op for op in graph.get_operations() if op.type == "MatMul" and "/shared_" in op.name]
    # Forward exchanges have the name of their layer. There are two: to the experts, and back.
    forward = [op for op in exchanges if "/experts_" in op.name]
    backward = [op for op in exchanges if op not in forward]
    assert len(forward) == len(backward) == 2 * num_replicas_here
    of_gradients = [op for op in products if op.name.startswith("gradient_tape/")]
    of_outputs = [op for op in products if op not in of_gradients]
    # Up, gate and down on each replica; each has two gradients.
    assert (len(of_outputs), len(of_gradients)) == (3 * num_replicas_here, 6 * num_replicas_here)
    for own, sent in ((of_outputs, forward), (of_gradients, backward)):
        for found in (_reached(own, before=True), _reached(own, before=False)):
            assert not [op.name for op in sent if op in found]
    # Checks that paths can be found: gradients depend on both.
    assert {*of_gradients, *backward} <= _reached(of_outputs, before=False)
    assert {*of_gradients, *backward} <= _reached(forward, before=False)


def _exchanges_tokens(op: Any) -> bool:
    """Returns True for an all-to-all of tokens, or for one of its copies from one device to another."""
    sends = op.type == "Identity" and op.device and op.inputs[0].op.device not in ("", op.device)
    if not sends and "alltoall" not in op.type.lower():
        return False
    # Everything else that crosses devices is flat, like gradients, or has a static size, like counts.
    shape = op.outputs[0].shape.as_list()
    return len(shape) > 1 and None in shape


def _reached(operations: Iterable[Any], *, before: bool) -> set[Any]:
    """Returns all operations that these depend on, or that depend on these, themselves included."""
    found: set[Any] = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        if before:
            waiting += [*(each.op for each in op.inputs), *op.control_inputs]
        else:
            waiting += [user for each in op.outputs for user in each.consumers()]
            # No public name gives the target of a control edge.
            waiting += op._control_outputs
    return found
