"""Forward and backward passes in line and as functions of the graph, with equal bits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.passes import Passes, Recompute

Results = list[np.ndarray]


def numbers(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32)


def run(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    in_line: bool,
    recompute: Recompute | None = None,
    calls: int = 2,
    in_halves: bool = False,
) -> Results:
    """Returns outputs and gradients of some calls, in one graph; 0 for a missing gradient.

    With `in_halves`, the gradients of variables are computed after all others.
    """

    @tf.function(autograph=False)
    def everything(*inputs: tf.Tensor) -> list[Any]:
        passes = Passes(contextlib.nullcontext, function, variables, recompute, in_line)
        made: list[Any] = []
        for i in range(calls):
            outputs, vjp = passes([x if x.dtype.is_integer else x * (i + 1.0) for x in inputs])
            upstream = [tf.ones_like(y) * 0.5 if y.dtype.is_floating else None for y in outputs]
            made.append((outputs, *(vjp.in_halves if in_halves else vjp)(upstream)))
        found: list[Any] = []
        for outputs, input_gradients, of_variables in made:
            variable_gradients = of_variables([None] * len(variables)) if in_halves else of_variables
            found += [
                *outputs,
                *input_gradients,
                *map(tf.convert_to_tensor, (0.0 if g is None else g for g in variable_gradients)),
            ]
        return [0.0 if value is None else value for value in found]

    return [value.numpy() for value in everything(*inputs)]


def looping(kernel: tf.Variable) -> Callable[..., Sequence[Any]]:
    def function(x: tf.Tensor) -> list[Any]:
        def body(i: tf.Tensor, h: tf.Tensor) -> Any:
            return i + 1, tf.tanh(h @ kernel)

        return [tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]]

    return function


def looking_up(table: tf.Variable) -> Callable[..., Sequence[Any]]:
    def function(ids: tf.Tensor, x: tf.Tensor) -> list[Any]:
        return [tf.gather(table, ids) * x, ids + 1]

    return function


def branching(kernel: tf.Variable) -> Callable[..., Sequence[Any]]:
    """Returns a function with tensors of several users, whose gradients are summed, and an unused output."""

    def function(x: tf.Tensor) -> list[Any]:
        h = tf.nn.softplus(x @ kernel)
        return [h * x + tf.sin(h) * tf.cos(h) + h, tf.argmax(h, -1), tf.reduce_sum(h * h, -1)]

    return function


KERNEL = numbers(4, 4, seed=1)
CASES: dict[str, tuple[Any, list[tf.Tensor]]] = {
    "loop": (looping, [numbers(3, 4)]),
    "rows of a table": (looking_up, [tf.constant([1, 2, 1]), numbers(3, 4)]),
    "several users": (branching, [numbers(3, 4)]),
}


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_functions_give_what_ops_in_line_give(case: Any) -> None:
    make, inputs = case
    unused = tf.Variable(1.0)
    kernel = tf.Variable(KERNEL)
    results = [
        run(make(kernel), inputs, [kernel, unused], in_line, in_halves=in_halves)
        for in_line in (True, False)
        for in_halves in (False, True)
    ]
    for one, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_array_equal(one, other)
    assert any(np.abs(value).sum() > 0 for value in results[0][3:])


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize("in_line", [True, False])
def test_done_again_gives_the_same_and_changes_nothing_twice(in_line: bool) -> None:
    kernel, count = tf.Variable(KERNEL), tf.Variable(1.0)

    def drawn(state: tf.Tensor, x: tf.Tensor) -> list[Any]:
        return [tf.tanh(x @ kernel) * tf.cos(state)]

    def function(x: tf.Tensor) -> list[Any]:
        before = tf.identity(count)
        count.assign_add(1.0)
        return drawn(before, x)

    once = run(function, [numbers(3, 4)], [kernel], in_line)
    assert count.numpy() == 3
    count.assign(1.0)
    recompute = Recompute(lambda: [tf.identity(count)], lambda state, x: drawn(state[0], x))
    twice = run(function, [numbers(3, 4)], [kernel], in_line, recompute)
    assert count.numpy() == 3
    for one, other in zip(once, twice, strict=True):
        np.testing.assert_array_equal(one, other)


def test_ops_are_there_once_however_often_called() -> None:
    def size(calls: int, rows: int) -> int:
        kernel = tf.Variable(KERNEL)

        @tf.function(autograph=False)
        def everything(x: tf.Tensor) -> list[Any]:
            passes = Passes(contextlib.nullcontext, branching(kernel), [kernel], None, False)
            made = [passes([x[: rows if i else 3]]) for i in range(calls)]
            return [g for outputs, vjp in made for g in vjp([tf.ones_like(outputs[0]), None, None])[1]]

        definition = everything.get_concrete_function(numbers(3, 4)).graph.as_graph_def()
        nodes = [node for function in definition.library.function for node in function.node_def]
        return sum(node.op == "Softplus" for node in nodes) + sum(node.op == "Softplus" for node in definition.node)

    assert size(1, 3) == size(5, 3) == 1
    # Another shape is traced again.
    assert size(5, 2) == 2


def test_what_is_held() -> None:
    kernel = tf.Variable(numbers(4, 8))
    passes = Passes(contextlib.nullcontext, lambda x: [tf.nn.relu(x @ kernel)], [kernel])
    # The gradient of a relu needs only its output: neither the input nor the kernel is kept.
    assert passes.held_bytes([numbers(3, 4)]) == 3 * 8 * 4


@pytest.mark.usefixtures("without_rewriting")
def test_of_outputs_that_are_not_wanted_nothing_comes_back() -> None:
    """Unwanted outputs give no gradient at all: zeros would reach the optimizer, and some would be NaN."""
    for in_line in (True, False):
        one, other = tf.Variable(KERNEL), tf.Variable(KERNEL)

        @tf.function(autograph=False)
        def gradients(x: tf.Tensor, one: Any = one, other: Any = other, in_line: bool = in_line) -> list[Any]:
            function = lambda x: [tf.sqrt(0.0 * x) @ one, x @ other]  # noqa: E731
            passes = Passes(contextlib.nullcontext, function, [one, other], None, in_line)
            found = []
            for wanted in ((False, True), (True, False), (True, True)):
                outputs, vjp = passes([x])
                upstream = [
                    tf.ones_like(y) if is_wanted else None for y, is_wanted in zip(outputs, wanted, strict=True)
                ]
                [input_gradient], variable_gradients = vjp(upstream)
                assert [g is not None for g in variable_gradients] == list(wanted)
                found.append(input_gradient)
            return found

        first, second, third = gradients(numbers(3, 4))
        np.testing.assert_array_equal(np.isfinite(first), True)
        assert not np.isfinite(second).all()
        assert not np.isfinite(third).all()


def test_nothing_wanted_gives_nothing() -> None:
    kernel = tf.Variable(KERNEL)
    for in_line in (True, False):
        _, vjp = Passes(contextlib.nullcontext, lambda x: [x @ kernel], [kernel], None, in_line)([numbers(3, 4)])
        assert vjp([None]) == ([None], [None])
        gradients, add_to = vjp.in_halves([None])
        assert (gradients, add_to([None])) == ([None], [None])
