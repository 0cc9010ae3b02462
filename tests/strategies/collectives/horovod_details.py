"""Horovod's collectives beyond the contract, between four processes: run by `test_horovod` after `horovod_suite`.

Buckets of gradients; pruning, merging and reordering of Horovod's ops, which TensorFlow must not do; refusals.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.horovod import HorovodCollectives, start
from strategies.topology.mesh import DeviceMesh
from tests.strategies.collectives.horovod_suite import LINE, RANK, STAGES, make_collectives, start_horovod
from tests.strategies.collectives.reference import CUBE, SQUARE, Tensors, draw


def pair() -> HorovodCollectives:
    """Returns two groups of two along "data": ranks 0 and 2, ranks 1 and 3."""
    return make_collectives(tuple(SQUARE.items()))


def mine(*values: float) -> tf.Tensor:
    """Returns this rank's vector: `values` times one more than its position along "data"."""
    return tf.constant(values, tf.float32) * (RANK // 2 + 1.0)


@pytest.mark.parametrize(
    ("op", "compression", "axes"),
    [
        ("sum", None, SQUARE),
        ("average", None, LINE),
        ("sum", "fp16", LINE),
        ("average", "fp16", SQUARE),
        ("average", "bf16", LINE),
    ],
)
def test_many_at_once(op: Any, compression: Any, axes: dict[str, int]) -> None:
    collectives = make_collectives(tuple(axes.items()))
    members = range(4) if axes == LINE else (RANK % 2, RANK % 2 + 2)
    factor = sum(rank + 1 for rank in members) / (len(members) if op == "average" else 1)
    values = draw([(2, 3), (), (5,), (0, 4), (17,)])
    share = [value * float(RANK + 1) for value in values]

    def step(tensors: Tensors) -> Tensors:
        [totals] = collectives.all_reduce_many([tensors], "data", op, compression)
        return totals

    specs = [tf.TensorSpec([None] * value.shape.rank, value.dtype) for value in share]
    dynamic = tf.function(step, input_signature=[specs], autograph=False)
    for run in (step, tf.function(step, autograph=False), dynamic):
        for value, result in zip(values, run(share), strict=True):
            assert result.dtype == tf.float32
            np.testing.assert_array_equal(result, value * factor)


def test_many_of_several_dtypes_keep_theirs() -> None:
    dtypes = ["float16", "float32", "int32", "bfloat16", "float64", "int64"]

    @tf.function(autograph=False)
    def step() -> Tensors:
        values = [tf.cast([1, 2], dtype) for dtype in dtypes]
        [totals] = pair().all_reduce_many([values], "data", compression="bf16")
        [none] = pair().all_reduce_many([[]], "data")
        return totals + none

    results = step()
    assert [result.dtype.name for result in results] == dtypes
    for result in results:
        np.testing.assert_array_equal(tf.cast(result, tf.float32), [2, 4])
    [[alone]] = pair().all_reduce_many([[tf.ones(2)]], "pipe")
    np.testing.assert_array_equal(alone, [1, 1])


def test_compression_rounds_what_is_sent_and_adds_in_float32() -> None:
    collectives = make_collectives(tuple(LINE.items()))
    # If the ones were added one by one in float16, they would vanish beside 2048.
    value = tf.fill([8], 2048.0 if RANK == 0 else 1.0)
    [[fp16]] = collectives.all_reduce_many([[value]], "data", compression="fp16")
    np.testing.assert_array_equal(fp16, np.full(8, np.float16(2051)))
    [[bf16]] = collectives.all_reduce_many([[tf.fill([3], 1.001)]], "data", compression="bf16")
    np.testing.assert_array_equal(bf16, [4, 4, 4])


def test_a_result_that_one_rank_does_not_use_is_exchanged_all_the_same() -> None:
    collectives = pair()

    @tf.function(autograph=False)
    def step(value: tf.Tensor) -> tf.Tensor:
        [total] = collectives.all_reduce([value], "data")
        return total if RANK < 2 else value

    for _ in range(2):
        np.testing.assert_array_equal(step(mine(1, 2)), [3, 6] if RANK < 2 else [2, 4])


def test_a_gradient_that_one_rank_does_not_use_is_exchanged_all_the_same() -> None:
    collectives = pair()
    # The gradient of a broadcast is an all-reduce, which only the root uses. The tape is outside of the functions.
    inner = tf.function(lambda v: collectives.broadcast([v], "data", root=1)[0], autograph=False)
    outer = tf.function(lambda v: inner(v) * 2.0, autograph=False)
    for function, factor in ((inner, 1), (outer, 2)):
        for _ in range(2):
            value = mine(3)
            with tf.GradientTape() as tape:
                tape.watch(value)
                result = function(value)
            np.testing.assert_array_equal(result, [6 * factor])
            np.testing.assert_array_equal(tape.gradient(result, value), [2 * factor if RANK >= 2 else 0])


def test_equal_and_constant_inputs_are_exchanged_one_by_one_every_time() -> None:
    collectives = make_collectives(tuple(STAGES.items()))
    source = RANK < 2

    @tf.function(autograph=False)
    def step(factor: tf.Tensor) -> tuple[tf.Tensor, Tensors]:
        channel = collectives.channel("pipe", 0, 1, num_messages=3)
        sent = [channel.send([factor * float(tag + 1)] * source, tag) for tag in range(3)]
        assert all(len(tensors) == source for tensors in sent)
        received = [channel.recv([[1]] * (not source), tf.float32, tag) for tag in range(3)]
        constant = tf.constant([1.0]) if source else tf.constant([2.0])
        sums = [collectives.all_reduce([constant * 1.0], "pipe")[0] for _ in range(2)]
        return tf.add_n(sums), [tensor for tensors in received for tensor in tensors]

    for factor in (1.0, 2.0):
        total, received = step(tf.constant([factor]))
        np.testing.assert_array_equal(total, [6])
        np.testing.assert_array_equal(received, [] if source else [[factor], [2 * factor], [3 * factor]])
    horovod_ops = [op.type for op in step.get_concrete_function(tf.zeros(1)).graph.get_operations()]
    assert horovod_ops.count("HorovodAlltoall") == 3
    assert horovod_ops.count("HorovodAllreduce") == 2


def test_iterations_that_could_overlap_keep_their_order() -> None:
    collectives = pair()
    num_iterations = 30

    def uneven_work(i: tf.Tensor) -> tf.Tensor:
        size = 40 + 120 * ((i * 7 + RANK) % 3)
        return tf.reduce_sum(tf.matmul(tf.ones([size, size]), tf.ones([size, size]))) * 0.0

    def loop(value: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            [summed] = collectives.all_reduce([value * tf.cast(i, tf.float32) + uneven_work(i)], "data")
            return i + 1, total + tf.reduce_sum(summed) * tf.cast(i, tf.float32)

        return tf.while_loop(lambda i, _: i < num_iterations, body, (0, 0.0))[1]

    def with_gradient(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(value)
            total = loop(value)
        return total, tape.gradient(total, value)

    squares = sum(i * i for i in range(num_iterations))
    traced = tf.function(loop, autograph=False)
    for run in (tf.function(with_gradient, autograph=False), with_gradient, lambda v: (traced(v), None)):
        for _ in range(2):
            total, gradient = run(mine(1, 2))
            assert float(total) == 9 * squares
            if gradient is not None:
                np.testing.assert_array_equal(gradient, [2 * squares, 2 * squares])


@pytest.mark.parametrize("inline", [True, False])
def test_calls_of_one_function_that_could_overlap_keep_their_order(inline: bool) -> None:
    collectives = pair()
    weight = tf.Variable(2.0)

    @tf.function(autograph=False, experimental_attributes=None if inline else {"_noinline": True})
    def inner(value: tf.Tensor) -> tf.Tensor:
        return collectives.all_reduce([value * weight], "data")[0]

    @tf.function(autograph=False)
    def step(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(value)
            results = tf.stack([inner(value * float(i)) for i in range(10)])
        return results, tape.gradient(results, value)

    for _ in range(2):
        results, gradient = step(mine(1))
        np.testing.assert_array_equal(results[:, 0], [6 * i for i in range(10)])
        np.testing.assert_array_equal(gradient, [2 * 2 * 45])


def test_either_branch_of_a_conditional() -> None:
    collectives = pair()

    @tf.function(autograph=False)
    def step(value: tf.Tensor, add: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = tf.cond(
                add,
                lambda: collectives.all_reduce([value], "data")[0],
                lambda: collectives.permute([value], "data", [(0, 1)])[0],
            )
        return result, tape.gradient(result, value)

    for add, result, gradient in ((True, 3, 2), (False, RANK // 2, 1 - RANK // 2), (True, 3, 2)):
        outcome = step(mine(1), tf.constant(add))
        np.testing.assert_array_equal(outcome, [[result], [gradient]])


def test_refused_calls() -> None:
    collectives = pair()
    with pytest.raises(ValueError, match=r"Make channels inside a tf\.function"):
        collectives.channel("data", 0, 1)
    with pytest.raises(ValueError, match=r"must be one of.*Received: 'max'"):
        collectives.all_reduce_many([[tf.ones(2)]], "data", "max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"compression must be one of.*Received: 'int8'"):
        collectives.all_reduce_many([[tf.ones(2)]], "data", compression="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="The average of integers is not defined"):
        collectives.all_reduce_many([[tf.ones(2), tf.ones(2, tf.int32)]], "data", "average")
    with pytest.raises(ValueError, match=r"adasum over MPI only.*axis 'data' of 2 in the mesh"):
        collectives.all_reduce_many([[tf.ones(2)]], "data", "adasum")


def test_refused_construction() -> None:
    start_horovod()
    square = DeviceMesh.from_processes(4, SQUARE)
    with pytest.raises(ValueError, match="every process owns one coordinate"):
        start(DeviceMesh.from_processes(2, local_devices=["CPU:0", "CPU:1"]))
    with pytest.raises(ValueError, match=r"needs 8 processes, but Horovod runs 4\..*horovodrun -np 8"):
        start(DeviceMesh.from_processes(8, CUBE))
    with pytest.raises(ValueError, match="needs 2 processes, but Horovod runs 4"):
        HorovodCollectives(DeviceMesh.from_processes(2), RANK)
    with pytest.raises(ValueError, match=r"rank 0 and .* in process 1"):
        HorovodCollectives(square, 0)
    with pytest.raises(ValueError, match=r"the same mesh.* in process 1"):
        HorovodCollectives(square if RANK else DeviceMesh.from_processes(4), RANK)
    with pytest.raises(ValueError, match=r"without the process sets \[\[0, 3\], \[1, 2\]\]"):
        start(DeviceMesh(("data", "pipe"), (2, 2), (0, 3, 1, 2), ("",) * 4))


def test_channels_join_the_pairs_they_were_started_for() -> None:
    start_horovod()
    collectives = make_collectives((("pipe", 4),))
    with pytest.raises(ValueError, match=r"without the process sets \[\[1, 2\]\]"):
        tf.function(lambda: bool(collectives.channel("pipe", 1, 2)), autograph=False)()
