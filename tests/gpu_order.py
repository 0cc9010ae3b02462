"""The order of collectives in a function and in those that it calls, given by control edges and data."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

HOST = "host"
COLLECTIVES = (
    "CollectiveReduceV2",
    "CollectiveGatherV2",
    "CollectiveAllToAllV2",
    "CollectiveBcastSendV2",
    "CollectiveBcastRecvV2",
)
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")


def would_be(device: str) -> str | None:
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type is None:
        return None
    if spec.device_type == "GPU":
        return f"GPU:{spec.device_index or 0}"
    return f"GPU:{spec.device_index - 1}" if spec.device_index else HOST


def is_functional(op: Any) -> bool:
    return op.type in (*CALLS, *BRANCHES, *LOOPS)


def functions_of(op: Any, graph: Any) -> Iterator[tuple[str, Any]]:
    """Yields attribute and graph of the functions that an op calls."""
    for name in ("f", "then_branch", "else_branch", "cond", "body"):
        if name in op.node_def.attr:
            yield name, _graph_of(op.get_attr(name).name, graph)
    if op.type in ("Case", "StatelessCase"):
        for each in op.get_attr("branches"):
            yield "branches", _graph_of(each.name, graph)


def _graph_of(name: str, graph: Any) -> Any:
    while graph is not None:
        # No public API gives a graph's function library.
        found = graph._get_function(name)
        if found is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)


def control_outputs(graph: Any) -> list[Any]:
    return list(getattr(graph, "control_outputs", ()))


def disorders_in(graph: Any, path: str, default: str) -> list[str]:
    """Returns the unordered collectives of each device in one function.

    A call, branch or loop that contains collectives counts as one. Only control edges order it: its data may be ready
    before its collectives are done.
    """
    users: dict[str, list[Any]] = collections.defaultdict(list)
    for op in graph.get_operations():
        for device in sorted(_devices_with_collectives(op, graph, default)):
            users[device].append(op)
    found = []
    for device, ops in users.items():
        for first, second in itertools.pairwise(ops):
            if not _waits_for(second, first):
                found.append(
                    f"{device}: {path}{second.name} ({second.type}) does not wait for {first.name} ({first.type})"
                )
        must_run = control_outputs(graph)
        # Ops after the function wait for the last collective, and the next iteration of a loop for the whole one.
        last = ops[-1]
        if path and not any(each.name == last.name or _waits_for(each, last) for each in must_run):
            found.append(f"{device}: nothing behind {path} waits for {last.name} ({last.type})")
    return found


def _devices_with_collectives(op: Any, graph: Any, default: str) -> set[str]:
    device = would_be(op.device) or default
    if op.type in COLLECTIVES:
        return {device} - {HOST}
    if not is_functional(op):
        return set()
    return {
        each
        for _, inner in functions_of(op, graph)
        for one in inner.get_operations()
        for each in _devices_with_collectives(one, inner, device)
    }


def _waits_for(op: Any, earlier: Any) -> bool:
    """Returns True if `op` starts only after `earlier` is done."""
    is_call = is_functional(op)
    seen: set[str] = set()
    pending = [*op.control_inputs, *([] if is_call else (t.op for t in op.inputs))]
    while pending:
        each = pending.pop()
        if each.name == earlier.name:
            return True
        if each.name in seen:
            continue
        seen.add(each.name)
        pending += each.control_inputs
        # Data of a call that contains the earlier collective may be ready before it: such an edge does not count.
        pending += [t.op for t in each.inputs if t.op.name != earlier.name or not is_functional(earlier)]
    return False
