"""The scan finds each kind of problem in a graph that has it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.gpu_scan import scan

GPU, OTHER, HOST = "CPU:1", "CPU:2", "CPU:0"


def all_reduce(value: Any, key: int, tokens: Any = ()) -> Any:
    with tf.device(GPU):
        return tf.raw_ops.CollectiveReduceV2(
            input=value, group_size=2, group_key=1, instance_key=key, merge_op="Add", final_op="Id",
            ordering_token=list(tokens),
        )  # fmt: skip


def beside_others(op: Any) -> None:
    tf.compat.v1.get_default_graph().experimental_acd_manager.run_independently(op)


def traced(function: Any, *specs: Any) -> Any:
    return scan(tf.function(function, autograph=False).get_concrete_function(*specs))


def test_ops_without_kernels() -> None:
    def step(x: Any) -> Any:
        with tf.device(GPU):
            return tf.strings.as_string(x), tf.sqrt(x)

    [found] = traced(step, tf.TensorSpec([2])).without_kernel()
    assert (found.type, found.device) == ("AsString", "GPU:0")


def test_refused_dtypes() -> None:
    step = lambda x: (all_reduce(x, 1), all_reduce(tf.cast(x, tf.int64), 2))  # noqa: E731
    [found] = traced(step, tf.TensorSpec([2], tf.int32)).refused()
    assert found.op.get_attr("T") == tf.int32


def test_order() -> None:
    token = tf.Variable(0.0)
    spec = tf.TensorSpec([2])

    def without(x: Any) -> Any:
        results = [all_reduce(x, 1), all_reduce(x, 2)]
        for result in results:
            beside_others(result.op)
        return results

    assert len(traced(without, spec).disorders) == 1
    assert not traced(lambda x: [all_reduce(x, i, [token.handle]) for i in (1, 2)], spec).disorders

    # Inside a call, a branch and a loop.
    variables = [tf.Variable(0.0) for _ in range(4)]

    def nested(take: bool) -> Any:
        tokens = [token.handle] if take else []

        def reduced(x: Any, key: int) -> Any:
            # Each function reads a variable, as in any step: TensorFlow would order functions that read none.
            result = all_reduce(x + variables[key], key, tokens)
            if not take:
                beside_others(result.op)
            return result

        def step(x: Any) -> Any:
            called = tf.function(lambda y: reduced(y, 1), autograph=False)(x)
            branch = tf.cond(x[0] > 0, lambda: reduced(x, 2), lambda: x)
            looped = tf.while_loop(lambda *_: True, lambda y: [reduced(y, 3)], [x], maximum_iterations=2)
            return called, branch, looped

        return step

    assert not traced(nested(True), spec).disorders
    assert len(traced(nested(False), spec).disorders) == 2


def test_control_edges() -> None:
    def step(x: Any) -> Any:
        with tf.device(GPU):
            ready = [tf.sqrt(x), tf.exp(x)]
        with tf.device(HOST), tf.control_dependencies(ready):
            host = tf.timestamp()
        with tf.device(OTHER), tf.control_dependencies(ready):
            other = tf.sqrt(tf.exp(x))
        return host, other

    found = traced(step, tf.TensorSpec([2]))
    # One edge for each op to the host; the edges to the other GPU are joined.
    assert sorted(edge[1].type for edge in found.with_host()) == ["NoOp", "Timestamp", "Timestamp"]
    assert len(found.between_gpus()) == 1
    assert not found.beside_collectives()


def test_control_edges_beside_collectives() -> None:
    def step(x: Any) -> Any:
        with tf.device(HOST):
            counted = tf.timestamp()
        with tf.control_dependencies([counted]):
            return all_reduce(x, 1)

    [(source, target)] = traced(step, tf.TensorSpec([2])).beside_collectives()
    assert (source.type, target.device) == ("Timestamp", "GPU:0")


def test_copies() -> None:
    def step(x: Any) -> Any:
        with tf.device(GPU):
            there, size = tf.sqrt(x), tf.shape(x) + 1
        with tf.device(OTHER):
            first, second = tf.exp(there), tf.sqrt(there)
        with tf.device(HOST):
            # 32-bit integers are in the host's memory.
            return first, second, tf.identity(there), size + 1

    found = traced(step, tf.TensorSpec([None]))
    # Returned tensors are on the first GPU.
    assert sorted(target.device for _, target in found.copies) == ["GPU:0", "GPU:0", "GPU:0", "GPU:1", "host"]


def test_arguments_that_are_read_in_two_places() -> None:
    def step(x: Any, y: Any, shape: Any) -> Any:
        with tf.device(GPU):
            here = tf.exp(x), tf.sqrt(x), tf.fill(shape, 1.0), tf.exp(y), tf.shape(y)
        with tf.device(HOST):
            return *here, tf.shape(x), tf.sqrt(tf.cast(shape, tf.float32))

    specs = [tf.TensorSpec([None]), tf.TensorSpec([None]), tf.TensorSpec([1], tf.int32)]
    [(_, target)] = [edge for edge in traced(step, *specs).copies if edge[0].type == "Argument"]
    assert (target.type, target.device) == ("Shape", "host")
