"""Adds nodes to a graph, as ``tf.graph_util.import_graph_def`` does, in half of its time.

The public function asks each new op for its colocation. Nearly all have none, so that an exception is raised and
caught; then the current device is applied. Here the nodes have their devices.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from strategies._tf_internals import c_api, c_api_util


def import_nodes(graph: Any, nodes: Any, inputs: Mapping[str, tf.Tensor]) -> None:
    """Adds nodes to a graph.

    Args:
        graph: the graph; it is the default graph.
        nodes: a `tf.compat.v1.GraphDef` without functions; each node has its final device, and a name that is new.
        inputs: the tensors of the graph that the nodes take, by "name:index", in place of those that they name.
    """
    options = c_api_util.ScopedTFImportGraphDefOptions()
    for name, tensor in inputs.items():
        op, _, index = name.partition(":")
        c_api.TF_ImportGraphDefOptionsAddInputMapping(options.options, op, int(index), tensor._as_tf_output())
        c_api.TF_ImportGraphDefOptionsRemapControlDependency(options.options, op, tensor.op._c_op)
    with graph._mutation_lock():
        buffer = c_api.TF_NewBufferFromString(nodes.SerializeToString())
        try:
            with graph._c_graph.get() as c_graph:
                results = c_api.TF_GraphImportGraphDefWithResults(c_graph, buffer, options.options)
        finally:
            c_api.TF_DeleteBuffer(buffer)
        c_api.TF_DeleteImportGraphDefResults(results)
        for c_op in graph.new_operations():
            graph._create_op_from_tf_operation(c_op, compute_device=False)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Context manager: Python does not search for garbage. Ops are none, and each search visits more of them.

    Use it where a graph is made. The searches would take a tenth of the time of the first step on eight devices.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
