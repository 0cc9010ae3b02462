"""Ops and captures that are added to a graph at once are as those that TensorFlow adds one at a time."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from strategies.steps.graph_import import capture_resources, import_nodes, without_collections


def test_captured_resources_are_those_of_tensorflow() -> None:
    variables = [tf.Variable(np.full((2, 3), float(i), np.float32)) for i in range(4)]
    handles = [variable.handle for variable in variables]

    @tf.function(jit_compile=False)
    def total() -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        before = graph.capture(handles[1])
        found = capture_resources(graph, [*handles, handles[2]])
        assert found[1] is before
        assert found[4] is found[2]
        assert all(graph.capture(handle) is each for handle, each in zip(handles, found, strict=False))
        assert [inner for _, inner in graph.captures] == graph.inputs == [before, found[0], found[2], found[3]]
        values = [tf.raw_ops.ReadVariableOp(resource=each, dtype=tf.float32) for each in found]
        # Their shapes are known.
        assert {str(value.shape) for value in values} == {"(2, 3)"}
        return tf.add_n(values)

    np.testing.assert_array_equal(total(), np.full((2, 3), 0.0 + 1 + 2 + 3 + 2))
    variables[3].assign_add(tf.ones((2, 3)))
    np.testing.assert_array_equal(total(), np.full((2, 3), 9.0))
    # The variable keeps its value while the function has its handle.
    concrete = total.get_concrete_function()
    del variables
    np.testing.assert_array_equal(concrete(), np.full((2, 3), 9.0))


def test_imported_nodes_take_tensors_and_wait_for_ops() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.constant([1.0, 2.0], name="x")
        nodes = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
        node = nodes.node.add(name="scope/sum", op="AddV2", input=["a:0", "a:0", "^a"], device="/device:CPU:0")
        node.attr["T"].type = tf.float32.as_datatype_enum
        import_nodes(graph, nodes, {"a:0": x})
        made = graph.get_operation_by_name("scope/sum")
    assert [each.name for each in made.inputs] == ["x:0", "x:0"]
    assert made.control_inputs == [x.op]
    assert made.outputs[0].shape == [2]
    assert graph.unique_name("scope/sum", mark_as_used=False) == "scope/sum_1"
    with graph.as_default(), pytest.raises(tf.errors.InvalidArgumentError, match="already exists"):
        import_nodes(graph, nodes, {"a:0": x})


@pytest.mark.parametrize("is_enabled", [True, False])
def test_searches_for_garbage_go_on_afterwards(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    try:
        with without_collections():
            with pytest.raises(ValueError, match="invalid literal"), without_collections():
                int("one")
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
