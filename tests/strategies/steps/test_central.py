"""Variables on a parameter device: the placement of a step's operations, and the writes that replicas may make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.gpu_order import HOST
from tests.gpu_scan import Node, Scan, scan
from tests.strategies.gpu_graphs import programs
from tests.would_be_gpus import would_be_gpus

#: The GPUs in the scanned graphs: logical CPU devices that pass for GPUs.
GPUS = ["GPU:0", "GPU:1"]
TABLE = [programs.VOCABULARY, 8]


def central() -> strategies.CentralStorageStrategy:
    return strategies.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")


@pytest.fixture
def gpus() -> Iterator[None]:
    with would_be_gpus():
        yield


@pytest.fixture
def function(gpus: None) -> Any:
    """Returns the training step of a model of most kinds of layers: nine weights."""
    x, y = programs.rows()
    with central().scope():
        model = programs.classifier()
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return programs.steps_of(model.train_function)[0]


@pytest.fixture
def step(function: Any) -> Scan:
    return scan(function)


def named(found: Scan, *types: str) -> list[Node]:
    return [node for node in found.nodes if node.type in types]


def shapes(node: Node) -> list[Any]:
    return [] if node.op is None else [output.shape.as_list() for output in node.op.outputs if output.shape.rank]


def test_gradients_are_computed_on_the_compute_devices(step: Scan) -> None:
    products = named(step, "MatMul")
    assert sorted({node.device for node in products}) == GPUS
    # For two layers on each device: forward, gradient of the weights, gradient of the inputs.
    assert len(products) == 2 * 3 * len(GPUS)


def test_weights_and_slots_are_read_and_updated_on_the_parameter_device(step: Scan) -> None:
    updates = [node for node in step.nodes if node.path.startswith("update/")]
    assert {node.device for node in updates} == {HOST}
    # The weights, their two slots each, and the step counter are written once, whatever the number of replicas.
    assert len([node for node in updates if "Assign" in node.type]) == 9 * (1 + 2) + 1
    kernels = {(6 * 8, 8), (8, 3)}
    reads = [node for node in named(step, "ReadVariableOp") if tuple(*shapes(node)) in kernels]
    assert reads
    assert {node.device for node in reads} == {HOST}


def test_tensorflow_need_not_overrule_where_variables_are_used(function: Any) -> None:
    """TensorFlow moves an operation whose device differs from that of its variable; no operation here needs that."""
    homes = {inside.name: outside.device for outside, inside in function.graph.captures if outside.dtype == tf.resource}
    pairs = [
        (op, homes[each.name]) for op in function.graph.get_operations() for each in op.inputs if each.name in homes
    ]
    assert len(pairs) > 100
    assert not [op for op, home in pairs if op.device not in ("", home)]


def test_of_a_table_only_rows_travel(step: Scan) -> None:
    lookups = named(step, "ResourceGather")
    assert [node.device for node in lookups] == [HOST] * len(GPUS)
    travelling = [(source.device, target.device, shape) for source, target in step.copies for shape in shapes(source)]
    assert TABLE not in [shape for _, _, shape in travelling]
    num_rows = programs.LENGTH * 4
    for gpu in GPUS:
        assert (HOST, gpu, [4, programs.LENGTH, TABLE[1]]) in travelling
        assert (gpu, HOST, [num_rows, TABLE[1]]) in travelling


def test_nothing_that_a_gpu_cannot_do_and_no_collective_for_gradients(step: Scan) -> None:
    assert not step.without_kernel(), "\n".join(map(str, step.without_kernel()))
    # The synchronized BatchNormalization has one on each device, forward and backward.
    assert len(step.collectives()) == 2 * len(GPUS), "\n".join(map(str, step.collectives()))


def written_by_replicas(make: Callable[[], tf.Variable], value: Callable[[tf.Tensor], Any]) -> list[Any]:
    """Returns the values that two replicas read from a variable after each has written a value from its rows."""
    strategy = central()
    with strategy.scope():
        variable = make()

    @tf.function(autograph=False)
    def step(batch: tf.Tensor) -> Any:
        def replica(rows: tf.Tensor) -> tf.Tensor:
            variable.assign(value(rows))
            return variable.read_value()

        return strategy.run(replica, args=(batch,))

    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(1, 7).batch(6))
    seen = strategy.experimental_local_results(step(next(iter(batches))))
    return [*(each.numpy().item() for each in seen), variable.numpy().item()]


def total(rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reduce_sum(rows), tf.float32)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("NONE", 10.5), ("MEAN", 10.5), ("SUM", 21.0), ("ONLY_FIRST_REPLICA", 6.0)],
)
def test_what_replicas_write_to_a_weight_is_written_once(aggregation: str, expected: float) -> None:
    def make() -> tf.Variable:
        return tf.Variable(0.0, aggregation=getattr(tf.VariableAggregation, aggregation))

    assert written_by_replicas(make, total) == [expected] * 3


def test_counters_that_replicas_write_alike() -> None:
    assert written_by_replicas(lambda: tf.Variable(0), lambda rows: tf.constant(7)) == [7, 7, 7]


def test_an_optimizer_updates_what_is_on_the_parameter_device_only() -> None:
    strategy = central()
    with strategy.scope():
        variable = keras.Variable(1.0, trainable=False, name="factor")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])
    with pytest.raises(ValueError, match=r"Make it with trainable=True.*Received: 'factor"):
        strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [variable]))


class Counting(keras.optimizers.SGD):
    """Creates a variable of its own before it is built."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.seen = self.add_variable((), name="seen")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        self.seen.assign_add(1.0)


def test_replicas_read_what_an_optimizer_writes_to_variables_of_its_own() -> None:
    strategy = central()
    with strategy.scope():
        weight, optimizer = keras.Variable(1.0), Counting()
        optimizer.build([weight])
    for _ in range(2):
        strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [weight]))
    seen = strategy.run(lambda: tf.convert_to_tensor(optimizer.seen))
    assert [float(each) for each in strategy.experimental_local_results(seen)] == [2.0, 2.0]
    assert float(weight.numpy()) == pytest.approx(1.0 - 2 * 0.1 * 2)


def test_reads_outside_of_replicas() -> None:
    with central().scope():
        variable = tf.Variable([1.0, 2.0])
    assert float(tf.reduce_sum(variable)) == 3.0
    assert variable.numpy().tolist() == variable.value().numpy().tolist() == [1.0, 2.0]
    assert len(variable.values) == 1
    np.testing.assert_array_equal(variable.sparse_read(tf.constant([1, 1])), [2.0, 2.0])
