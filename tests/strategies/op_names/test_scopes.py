"""Name scopes: in graphs only."""

import tensorflow as tf

from strategies.op_names import names, scopes


def test_operations_of_a_function_have_the_scope() -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        with scopes.in_process("all_reduce", "data"):
            y = x + 1.0
        with scopes.pass_of_stage(1, "F", 0):
            return y * 2.0

    operations = [op.name for op in compute.get_concrete_function(tf.constant(1.0)).graph.get_operations()]
    assert ("all_reduce", "data") in map(names.find_in_process, operations)
    assert names.StagePass(1, "F", 0) in map(names.find_pass, operations)


def test_eagerly_there_is_none() -> None:
    with scopes.in_process("all_reduce", "data"):
        assert tf.Variable(1.0, name="x").name == "x:0"
