"""The halves of a backward pass: which ops are in which, and when they run. `test_passes` compares numbers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.passes import Passes

ROWS = tf.constant(np.random.default_rng(0).standard_normal((3, 4)), tf.float32)


def ops(function: Any) -> list[str]:
    """Returns the types of the ops of a function's graph that its results depend on."""
    found: dict[str, str] = {}
    waiting = [tensor.op for tensor in function.graph.outputs]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found[op.name] = op.type
            waiting += [value.op for value in op.inputs]
    return sorted(found.values())


def test_each_product_is_in_one_half() -> None:
    kernels = [tf.Variable(tf.eye(4) * (k + 2.0)) for k in range(3)]

    def function(x: tf.Tensor) -> list[Any]:
        for kernel in kernels:
            x = tf.tanh(x @ kernel)
        return [x]

    halves: list[Any] = []

    @tf.function(autograph=False)
    def everything(x: tf.Tensor) -> list[Any]:
        passes = Passes(contextlib.nullcontext, function, kernels, in_line=False)
        outputs, vjp = passes([x])
        gradients, add_to = vjp.in_halves([tf.ones_like(outputs[0])])
        [traced] = passes._traced.values()
        halves.extend(traced._halves.values())
        return [*gradients, *add_to([None] * 3)]

    everything(ROWS)
    [both] = halves
    assert ops(both.first).count("MatMul") == ops(both.second).count("MatMul") == 3
    # The gradient of an activation is in the first half, since the stage before depends on it.
    assert ops(both.first).count("TanhGrad") == 3
    assert ops(both.second).count("TanhGrad") == 0


def test_the_second_half_waits_and_effects_come_once() -> None:
    kernel, order = tf.Variable(tf.eye(4)), list[str]()

    def note(name: str, value: Any) -> Any:
        def said(given: Any) -> Any:
            order.append(name)
            return given

        result = tf.numpy_function(said, [value], value.dtype)
        result.set_shape(value.shape)
        return result

    @tf.custom_gradient
    def noting(x: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> tf.Tensor:
            # For its effect alone: no gradient depends on it.
            note("effect", tf.constant(0.0))
            return note("gradient", upstream)

        return tf.identity(x), backward

    @tf.function(autograph=False)
    def everything(x: tf.Tensor) -> list[Any]:
        passes = Passes(contextlib.nullcontext, lambda x: [noting(x) @ kernel], [kernel], in_line=False)
        outputs, vjp = passes([x])
        gradients, add_to = vjp.in_halves([tf.ones_like(outputs[0])])
        between = note("between", gradients[0])
        return [*gradients, *add_to([note("total", tf.zeros((4, 4)))], [between])]

    gradient, total = everything(ROWS)
    assert sorted(order) == ["between", "effect", "gradient", "total"]
    assert order.index("gradient") < order.index("between")
    np.testing.assert_allclose(gradient, np.ones((3, 4)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(total, np.asarray(ROWS).T @ np.ones((3, 4)), rtol=0, atol=1e-6)


def test_an_input_without_a_gradient_leaves_all_to_the_second_half() -> None:
    table = tf.Variable(tf.ones((5, 4)))

    @tf.function(autograph=False)
    def everything(ids: tf.Tensor) -> list[Any]:
        passes = Passes(contextlib.nullcontext, lambda ids: [tf.gather(table, ids)], [table], in_line=False)
        outputs, vjp = passes([ids])
        gradients, add_to = vjp.in_halves([tf.ones_like(outputs[0])])
        assert gradients == [None]
        return [tf.convert_to_tensor(total) for total in add_to([None])]

    [total] = everything(tf.constant([1, 1, 3]))
    np.testing.assert_array_equal(total.numpy()[:, 0], [0, 2, 0, 1, 0])
