"""The ops of a step and their devices: of the traced graph, of the executed graphs, and of the ops that ran.

TensorFlow's CPU profile shows which nodes ran, how often and when, but not on which device. TensorFlow executes one
graph per device, and these graphs are accessible: together they show which op ran on which device.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from strategies._tf_internals import eager_context
from tests.executed_graphs import executed_graphs

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Node(NamedTuple):
    """A node of a graph, or of a function that a graph calls; the latter once for each call.

    Attributes:
        name: name of the node; in a function it is unique only within the function.
        op: type of the op, such as "MatMul".
        device: such as "CPU:0"; in a function it is the device of the call, unless the node has its own.
        call: the node that calls the function, if any.
    """

    name: str
    op: str
    device: str
    call: Node | None = None


def nodes_of(concrete: Any) -> list[Node]:
    """Returns the nodes of a concrete function, as traced."""
    graph = concrete.graph.as_graph_def()
    return list(_nodes(graph.node, _functions(graph)))


def nodes_run_by(step: Callable[[], Any]) -> list[Node]:
    """Returns the nodes of the graphs that the devices execute; this must be the first call of `step`."""
    made = executed_graphs(step)
    # A graph's own library may lack functions that another graph's library has.
    functions = {name: each for one in made for name, each in _functions(one.pre_optimization_graph).items()}
    functions |= {name: each for one in made for name, each in _functions(one.post_optimization_graph).items()}
    return [node for one in made for graph in one.partition_graphs for node in _nodes(graph.node, functions)]


def profiled(step: Callable[[], Any], folder: pathlib.Path) -> list[tuple[str, str]]:
    """Calls `step`, and returns name and type of each op in TensorFlow's profile of it."""
    with tf.profiler.experimental.Profile(str(folder)):
        step()
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    found = []
    for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            # An op is "name:type"; an op that Python ran eagerly has no name, and events that are no ops have "::".
            name, _, op = names[event.metadata_id].rpartition(":")
            if name and not name.endswith(":") and not op.startswith(" "):
                found.append((name, op))
    return found


def _functions(graph: Any) -> dict[str, Any]:
    return {function.signature.name: function for function in graph.library.function}


def _nodes(definitions: Sequence[Any], functions: Mapping[str, Any], call: Node | None = None) -> Iterator[Node]:
    for each in definitions:
        device = each.device.rpartition("device:")[2] or (call.device if call else "")
        node = Node(each.name, each.op, device, call)
        yield node
        if each.op in CALLS:
            # If an output is unused, TensorFlow runs a copy without the ops that only this output needs.
            name = each.attr["f"].func.name.partition("_specialized_for_")[0]
            function = functions.get(name) or eager_context.context().get_function_def(name)
            yield from _nodes(function.node_def, functions, node)
