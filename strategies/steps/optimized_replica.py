"""Lets TensorFlow optimize the ops of a step in parts, before those of one replica are copied for the others.

TensorFlow's graph optimizer (Grappler) would take most of the time in which a step of eight devices is compiled, to do
the same eight times. Here it sees one replica: what that takes from outside are placeholders, and what others take from
it stays. Ops that are no replica's, such as updates of an owner of shards, are optimized apart from these, to compute
what they compute on one device: the square root in place of a power. The graph of all then needs the last two passes
only, which remove superfluous ops and edges (`graph_optimization`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    device_properties,
    grappler_clusters,
    grappler_optimizer,
    handle_data_util,
    op_definitions,
)

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def optimize(nodes: dict[str, Any], graph: Any, kept: Collection[str], config: Any) -> dict[str, Any]:
    """Returns optimized nodes of a graph; nodes that stay have the names that they had.

    Args:
        nodes: by their names; none calls a function.
        graph: the graph from which they are.
        kept: the names of the nodes whose outputs others take; and nodes with effects stay.
        config: a `tf.compat.v1.ConfigProto`, which says what is optimized.
    """
    graph_def = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    # By what is taken from outside, "name:index" or "^name": the name of its placeholder.
    outside: dict[str, str] = {}
    for node in nodes.values():
        copied = graph_def.node.add()
        copied.CopyFrom(node)
        _keep_colocation(copied, nodes)
        for i, each in enumerate(node.input):
            name, _, index = each.removeprefix("^").partition(":")
            if name not in nodes:
                taken = each if each.startswith("^") else f"{name}:{index or 0}"
                placeholder = outside.setdefault(taken, f"outside_{len(outside)}")
                copied.input[i] = f"^{placeholder}" if each.startswith("^") else placeholder
    for taken, placeholder in outside.items():
        graph_def.node.append(_placeholder(placeholder, graph, taken, len(graph_def.node)))
    needed = [name for name, node in nodes.items() if name in kept or _has_effects(node)]
    if not needed:
        return {}
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(needed)
    devices = sorted({node.device for node in nodes.values() if node.device})
    found = grappler_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=_cluster(devices))
    originals = {placeholder: taken for taken, placeholder in outside.items()}
    optimized = {node.name: node for node in found.node if node.name not in originals}
    for node in optimized.values():
        node.input[:] = [_restored(each, originals) for each in node.input]
    return optimized


def _keep_colocation(node: Any, nodes: Collection[str]) -> None:
    """Removes the colocation of a node with nodes that are not among the given ones, or if it has a device."""
    beside = node.attr["_class"].list.s if "_class" in node.attr and not node.device else ()
    kept = [each for each in beside if each.decode().removeprefix("loc:@") in nodes]
    node.attr.pop("_class", None)
    if kept:
        node.attr["_class"].list.s.extend(kept)


def _placeholder(name: str, graph: Any, taken: str, index: int) -> Any:
    """Returns the node of an argument that stands for what is taken from outside."""
    op = graph.get_operation_by_name(taken.removeprefix("^").partition(":")[0])
    made = tf.compat.v1.NodeDef(name=name, op="_Arg", device=op.device)
    made.attr["T"].type = tf.float32.as_datatype_enum
    made.attr["index"].i = index
    if not taken.startswith("^"):
        tensor = graph.get_tensor_by_name(taken)
        made.attr["T"].type = tensor.dtype.as_datatype_enum
        made.attr["_output_shapes"].list.shape.append(tensor.shape.as_proto())
        data = handle_data_util.get_resource_handle_data(tensor) if tensor.dtype == tf.resource else None
        for each in data.shape_and_type if data is not None and data.is_set else ():
            made.attr["_handle_dtypes"].list.type.append(each.dtype)
            made.attr["_handle_shapes"].list.shape.append(each.shape)
    return made


def _has_effects(node: Any) -> bool:
    definition = op_definitions.get(node.op)
    return definition is None or (definition.is_stateful and node.op not in _READS)


def _cluster(devices: Collection[str]) -> Any:
    named = []
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        named.append(device_properties.NamedDevice(name=device))
        named[-1].properties.type = spec.device_type or "CPU"
        named[-1].properties.num_cores = 1
    return grappler_clusters.Cluster(devices=named)


def _restored(each: str, originals: dict[str, str]) -> str:
    """Returns an input of an optimized node, with a placeholder replaced by what it stands for."""
    mark = "^" if each.startswith("^") else ""
    original = originals.get(each.removeprefix("^").partition(":")[0])
    if original is None:
        return each
    return mark + original.removeprefix("^").partition(":")[0] if mark else original
