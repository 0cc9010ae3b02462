"""The places in the program where ops were made, for ops that are added to a graph without being made there.

An error of a running graph shows where its op was made. TensorFlow records the place when Python makes an op; imported
ops have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strategies._tf_internals import tf_stack

_ATTRIBUTE = "_keras_strategies_places"


def note_places(graph: Any, ops: Iterable[Any], names: Mapping[str, str]) -> None:
    """Records where ops of a graph were made.

    Args:
        graph: the graph to which they were added.
        ops: the ops as they were made, in another graph.
        names: by the name of an op of the graph, the name under which it was made.
    """
    builder = tf_stack.GraphDebugInfoBuilder()
    for op in ops:
        # Ops that were added there have no place either.
        if (stack := op.traceback) is not None:
            builder.AccumulateStackTrace("", op.name, stack.get_user_frames())
    found = builder.Build()
    known = dict(found.name_to_trace_id)
    found.name_to_trace_id.clear()
    found.name_to_trace_id.update({name: known[f"{made}@"] for name, made in names.items() if f"{made}@" in known})
    setattr(graph, _ATTRIBUTE, [*noted_places(graph), found])


def noted_places(graph: Any) -> list[Any]:
    """Returns what was recorded for a graph: for each call a ``GraphDebugInfo`` of TensorFlow."""
    return list(getattr(graph, _ATTRIBUTE, ()))
