"""Finds how the results of loops and conditionals depend on rows, from the functions that are their bodies.

The contract is tested in ``tests/strategies/batches/test_row_dependence.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.graph_nodes import graph_of
from strategies.batches.row_kinds import ROW_MAJOR, Form, Kind
from strategies.batches.row_marks import Found
from strategies.batches.row_rules import joined
from strategies.batches.row_shards import joined_parts

#: The operations that are loops.
LOOPS = ("StatelessWhile", "While")
#: The operations that are conditionals, each with the attributes that name its branches.
BRANCHES = {
    "Case": ("branches",),
    "If": ("then_branch", "else_branch"),
    "StatelessCase": ("branches",),
    "StatelessIf": ("then_branch", "else_branch"),
}
_LARGEST_NUMBER_OF_ROUNDS = 8

#: Takes an operation, the graph of one of its functions, and the kinds and layouts of that function's inputs; returns
#: those of its outputs.
BodyResults = Callable[[Any, Any, Sequence[Found]], list[Found]]


def loop_results(op: Any, given: Sequence[Found], body_results: BodyResults) -> list[Found]:
    """Returns the kinds and layouts of a loop's results, iterating the body's rules until they no longer change."""
    body = graph_of(op, op.get_attr("body").name)
    if body is None:
        return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
    state = list(given)
    for _ in range(_LARGEST_NUMBER_OF_ROUNDS):
        made = body_results(op, body, state)
        after = [_joined(one, other) for one, other in zip(state, made, strict=True)]
        if after == state:
            break
        state = after
    # A value that is carried from one row to the next mixes rows; a list that collects one item per row does not.
    carries = any(
        kind.has_rows and layout.axis < 0 and output.dtype != tf.variant
        for (kind, layout), output in zip(state, op.outputs, strict=True)
    )
    return [(Kind.UNKNOWN, ROW_MAJOR) if carries and kind.has_rows else (kind, layout) for kind, layout in state]


def branch_results(op: Any, given: Sequence[Found], body_results: BodyResults) -> list[Found]:
    """Returns the kinds and layouts of a conditional's results, which are those of all branches."""
    condition, *rest = given
    listed = op.get_attr("branches") if op.type in ("Case", "StatelessCase") else None
    names = [each.name for each in listed or [op.get_attr(name) for name in BRANCHES[op.type]]]
    graphs = [graph_of(op, name) for name in names]
    if any(graph is None for graph in graphs):
        return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
    first, *others = (body_results(op, graph, rest) for graph in graphs)
    for other in others:
        first = [_joined(one, each) for one, each in zip(first, other, strict=True)]
    if condition[1].shards is not None:
        chosen = dataclasses.replace(condition[1].shards, form=Form.OTHER)
        first = [(kind, layout.with_shards(joined_parts(layout.shards, chosen))) for kind, layout in first]
    if condition[0].is_fixed or condition[0] is Kind.COUNT:
        return first
    return [each if each[0].is_fixed else (Kind.UNKNOWN, each[1]) for each in first]


def _joined(one: Found, other: Found) -> Found:
    """Returns the kind and layout of a value that has either of two, as after a conditional."""
    if one == other:
        return one
    kind, shards = joined(one[0], other[0]), joined_parts(one[1].shards, other[1].shards)
    if one[0].is_fixed or other[0].is_fixed:
        return kind, (other[1] if one[0].is_fixed else one[1]).with_shards(shards)
    if kind.has_rows and one[1].axis != other[1].axis:
        return Kind.UNKNOWN, ROW_MAJOR
    return kind, one[1].with_shards(shards)
