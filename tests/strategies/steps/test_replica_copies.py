"""Copies of ops in a graph: what is exchanged, merged, refused, and kept in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from strategies.batches.shares import NotAlikeError
from strategies.steps.assembled_step import assemble, captured, new_graph
from strategies.steps.replica_copies import ReplicaCopies


def in_graph(check: Callable[[ReplicaCopies], None]) -> None:
    """Calls a function in the graph of a ``tf.function``, with copies for two devices."""

    @tf.function(autograph=False)
    def traced() -> None:
        graph = new_graph(tf.compat.v1.get_default_graph())
        with graph.as_default():
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


def test_names_are_those_of_no_other_step() -> None:
    def step(caller: Any, *, is_alike: bool) -> list[str]:
        graph = new_graph(caller)
        with graph.as_default(), tf.device("/device:CPU:0"):
            copies = ReplicaCopies(graph, [("/device:CPU:0", "/device:CPU:1")], dict)
            # TensorFlow traces a replica in this scope.
            with tf.name_scope("" if is_alike else "replica_1/"):
                copies.begin()
                root = tf.constant(2.0)
                roots = [tf.sqrt(root, name="root"), tf.sqrt(root, name="merged")]
                roots.append(tf.identity(roots[1], name="merged/read"))
                if is_alike:
                    copies.end()
            outputs = [*roots, *copies.for_replica(roots, 1)] if is_alike else roots
        return [each.op.name for each in assemble(copies, caller, outputs)]

    @tf.function(autograph=False)
    def traced() -> None:
        caller = tf.compat.v1.get_default_graph()
        assert step(caller, is_alike=False) == ["replica_1/root", "replica_1/merged", "replica_1/merged/read"]
        own = ["root", "root", "merged/read"]
        assert step(caller, is_alike=True) == [*own, *(f"replica_1_2/{name}" for name in own)]

    @tf.function(autograph=False)
    def traced_first() -> None:
        caller = tf.compat.v1.get_default_graph()
        step(caller, is_alike=True)
        # Names in which "merged" is a part exist, in "replica_1" too.
        assert step(caller, is_alike=False) == [f"replica_1/{name}" for name in ("root_1", "merged_1", "merged/read_1")]

    traced.get_concrete_function()
    traced_first.get_concrete_function()


def test_copies_once_what_is_computed_twice() -> None:
    def check(copies: ReplicaCopies) -> None:
        copies.begin()
        with tf.device("/device:CPU:0"):
            roots: list[Any] = [tf.sqrt(tf.constant(1.0)) for _ in range(4)]
        roots[3]._keras_strategies_summed_over_rows = True
        copies.end()
        others = copies.for_replica(roots, 1)
        # Values keep their own marks, although they are computed once.
        assert others[3]._keras_strategies_summed_over_rows
        assert not hasattr(others[0], "_keras_strategies_summed_over_rows")
        assert all(copies.for_replica(root, 1) is other for root, other in zip(roots, others, strict=True))
        copies.begin()
        with tf.device("/device:CPU:0"):
            later = tf.add_n(roots)
        copies.end()
        total = later + copies.for_replica(later, 1)
        assert copies.for_replica(later, 1).op.type == "Placeholder"
        assembled: Any = assemble(copies, copies.graph.outer_graph, {"total": total, "others": others})
        own, other = (each.op for each in assembled["total"].op.inputs)
        assert [own.name, other.name] == ["AddN", "replica_1/AddN"]
        for each, device in ((own, "/device:CPU:0"), (other, "/device:CPU:1")):
            assert each.device == device
            # One root, and what it is computed from.
            assert len({value.op.name for value in each.inputs}) == 1
            assert each.inputs[0].op.device == device
        assert {value.op.name for value in assembled["others"]} == {other.inputs[0].op.name}

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
        copies.end()
        other = copies.for_replica(second, 1)
        assert other._keras_strategies_summed_over_rows
        with copies.made_for_all(), tf.control_dependencies([second]):
            after = tf.constant(2.0, name="after")
        with tf.control_dependencies([other]):
            after_other = tf.constant(3.0, name="after_other")
        assembled: Any = assemble(copies, copies.graph.outer_graph, [other, after, after_other])
        other, after, after_other = assembled
        assert [other.name, other.device] == ["replica_1/second:0", "/device:CPU:1"]
        assert other._keras_strategies_summed_over_rows
        assert {op.name for op in other.op.control_inputs} == {"before", "replica_1/own"}
        assert {op.name for op in after.op.control_inputs} == {"second", "replica_1/second"}
        assert {op.name for op in after_other.op.control_inputs} == {"replica_1/second"}

    in_graph(check)


def test_an_op_comes_after_an_input_that_it_got_later() -> None:
    def check(copies: ReplicaCopies) -> None:
        v = tf.constant(1.0)
        copies.begin()
        with tf.device("/device:CPU:0"):
            early = tf.sqrt(v, name="early")
            tf.identity(early, name="between")
            late = tf.exp(v, name="late")
        early.op._update_input(0, late)
        copies.end()
        [made] = assemble(copies, copies.graph.outer_graph, [early])
        names = [op.name for op in made.graph.get_operations()]
        expected = [f"{prefix}{name}" for name in ("late", "early", "between") for prefix in ("", "replica_1/")]
        order = [names.index(name) for name in expected]
        assert order == sorted(order)
        assert made.op.inputs[0].op.name == "late"

    in_graph(check)


def test_names_stay_as_they_are() -> None:
    @tf.function(autograph=False)
    def traced() -> Any:
        # Names of the caller are not used again.
        outside = [tf.constant(1.0, name=name) for name in ("a", "replica_1/a")]
        graph = tf.compat.v1.get_default_graph()
        found: list[Any] = []
        for _ in range(2):
            inner = new_graph(graph)
            with inner.as_default(), tf.device("/device:CPU:0"):
                copies = ReplicaCopies(inner, [("/device:CPU:0", "/device:CPU:1")], dict)
                copies.begin()
                value = tf.add(captured(inner, outside[0]), 1.0, name="a")
                copies.end()
            found += assemble(copies, graph, [value])
        return found[0] + found[1]

    function = traced.get_concrete_function()
    names = {op.name for op in function.graph.get_operations()}
    own = {name for name in names if re.fullmatch(r"a_\d+", name)}
    assert len(own) == 2
    assert {name.partition("/")[2] for name in names if re.match(r"replica_1_?\d*/a", name)} >= own
    assert function().numpy() == 4.0
