"""Copies of ops in a graph: what is exchanged, merged, refused, and kept in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from strategies.batches.shares import NotAlikeError
from strategies.steps.replica_copies import ReplicaCopies


def in_graph(check: Callable[[ReplicaCopies], None]) -> None:
    """Calls a function in the graph of a ``tf.function``, with copies for two devices."""

    @tf.function(autograph=False)
    def traced() -> None:
        graph = tf.compat.v1.get_default_graph()
        check(ReplicaCopies(graph, [("/device:CPU:0", "/device:CPU:1")], dict))

    traced.get_concrete_function()


def test_refuses_values_that_differ() -> None:
    def check(copies: ReplicaCopies) -> None:
        one, other = tf.constant([1.0]), tf.constant([2.0])
        for values in (
            [{"a": one}, {"a": tf.constant([1.0, 2.0])}],
            [{"a": one}, {"a": tf.constant([1])}],
            [{"a": one}, {"b": one}],
            [1, 2],
        ):
            with pytest.raises(NotAlikeError):
                copies.pairs.add(values)
        copies.pairs.add([one, other])
        with pytest.raises(NotAlikeError, match="stands for different ones"):
            copies.pairs.add([one, one + 1.0])
        copied = copies.for_replica({"a": one, "b": 3}, 1)
        assert copied["a"] is other
        assert copied["b"] == 3

    in_graph(check)


def test_copies_once_what_is_computed_twice() -> None:
    def check(copies: ReplicaCopies) -> None:
        copies.begin()
        with tf.device("/device:CPU:0"):
            ones: list[Any] = [tf.constant(1.0) for _ in range(4)]
            roots = [tf.sqrt(one) for one in ones]
        ones[2]._keras_strategies_summed_over_rows = True
        roots[3]._keras_strategies_summed_over_rows = True
        copies.copy()
        with tf.device("/device:CPU:0"):
            later = tf.add_n(roots)
        copies.copy()
        constants, copied = (copies.for_replica(values, 1) for values in (ones, roots))
        assert constants[1] is constants[0]
        assert copied[1] is copied[0]
        # Marked ones stay apart.
        assert constants[2] is not constants[0]
        assert constants[2]._keras_strategies_summed_over_rows
        assert constants[3] is constants[0]
        assert copied[3] is not copied[0]
        assert not hasattr(copied[0], "_keras_strategies_summed_over_rows")
        assert list(copies.for_replica(later, 1).op.inputs) == copied

    in_graph(check)


def test_copies_control_edges_and_marks() -> None:
    def check(copies: ReplicaCopies) -> None:
        before = tf.raw_ops.NoOp(name="before")
        copies.begin()
        with tf.device("/device:CPU:0"):
            first = tf.constant(1.0, name="first")
            with tf.control_dependencies([before, tf.raw_ops.NoOp(name="own")]):
                second: Any = tf.identity(first, name="second")
        second._keras_strategies_summed_over_rows = True
        copies.copy()
        with tf.device("/device:CPU:0"):
            third = tf.add(second, first)
        copies.copy()
        copied = copies.for_replica(third, 1)
        assert copied.device == "/device:CPU:1"
        assert [each.op.type for each in copied.op.inputs] == ["Identity", "Const"]
        assert copied.op.inputs[0] is copies.for_replica(second, 1)
        assert {op.name for op in copied.op.inputs[0].op.control_inputs} == {"before", "replica_1/own"}
        assert copies.for_replica(second, 1)._keras_strategies_summed_over_rows

    in_graph(check)
