"""Sums over the CPU devices of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica, gradient_record
from strategies.steps.graph_import import import_nodes
from strategies.topology.devices import is_gpu


def default_reduction(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
    """Returns the reduction over ``devices``; None selects TensorFlow's default, collectives."""
    if not any(is_gpu(device) for device in devices):
        # Between logical CPU devices collectives copy tensors, and plain additions do not.
        return SumsInTurn()
    return None


class SumsInTurn(tf.distribute.ReductionToOneDevice):
    """Computes ``(v0 + v1) + v2 ...``, each addition on the device of the value it adds.

    TensorFlow rewrites one sum of three or more tensors into additions to a variable in the order of arrival: this
    makes more copies, and rounding differs from run to run.

    In a graph, the ops of all sums of a call are added at once. Of the time in which a step of eight devices is traced,
    Python would take a tenth to make them one by one.
    """

    def __init__(self) -> None:
        super().__init__(accumulation_fn=_add_in_turn)

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        """Returns the reduction of each value on the devices of its destination."""
        pairs = list(value_destination_pairs)
        if not _can_add_at_once(reduce_op, pairs):
            return list(super().batch_reduce_implementation(reduce_op, pairs, options))
        return _add_at_once([value.values for value, _ in pairs], [destination._devices for _, destination in pairs])


def _can_add_at_once(reduce_op: Any, pairs: Sequence[tuple[Any, Any]]) -> bool:
    # Ops that are added to a graph are on no tape, and wait for no other ops.
    if tf.executing_eagerly() or gradient_record.could_possibly_record() or reduce_op != tf.distribute.ReduceOp.SUM:
        return False
    graph = tf.compat.v1.get_default_graph()
    return not graph._current_control_dependencies() and all(
        isinstance(value, PerReplica)
        and len(getattr(destination, "_devices", ())) > 1
        and all(isinstance(each, tf.Tensor) and getattr(each, "graph", None) is graph for each in value.values)
        for value, destination in pairs
    )


def _add_at_once(values: Sequence[Sequence[tf.Tensor]], devices: Sequence[Sequence[str]]) -> list[Mirrored]:
    """Adds to the default graph the sums of values, and copies of each on devices."""
    graph = tf.compat.v1.get_default_graph()
    nodes = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    prefix = graph.unique_name("sums")

    def add(name: str, op: str, inputs: Sequence[str], device: str, dtype: tf.DType) -> str:
        node = nodes.node.add(name=f"{prefix}/{name}", op=op, input=inputs, device=device)
        node.attr["T"].type = dtype.as_datatype_enum
        return f"{node.name}:0"

    copies = []
    for i, (terms, targets) in enumerate(zip(values, devices, strict=True)):
        total, dtype = terms[0].name, terms[0].dtype
        for r, term in enumerate(terms[1:], 1):
            total = add(f"add_{i}_{r}", "AddV2", [total, term.name], term.device or targets[0], dtype)
        copies.append([add(f"copy_{i}_{r}", "Identity", [total], each, dtype) for r, each in enumerate(targets)])
    import_nodes(graph, nodes, {term.name: term for terms in values for term in terms})
    return [Mirrored(tuple(graph.get_tensor_by_name(name) for name in each)) for each in copies]


def _add_in_turn(values: Sequence[tf.Tensor]) -> tf.Tensor:
    total = values[0]
    for value in values[1:]:
        with tf.device(value.device):
            total = tf.add(total, value)
    return total
