"""The pipeline with TensorFlow's operations alone, without Keras and our packages, in its two processes.

It shows how fast TensorFlow's collectives and executor allow a pipeline to be: the same layers, schedules and messages,
written by hand, with known shapes and without checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from harness.workers import Report
from pipeline.sizes import NUM_DENSE, bounds

from model_parallel import clock
from model_parallel.cases import NUM_PARTS, Case, Workload

Pass = tuple[Literal["forward", "backward"], int]

_LEARNING_RATE = 1e-3
# Far from the group keys of tf.distribute, which count from 1.
_FIRST_GROUP = 1 << 20


def run(workload: Workload, report: Report) -> None:
    """Trains until the benchmark ends; call it before TensorFlow has started in this process."""
    tf.get_logger().setLevel("ERROR")
    # The constructor starts TensorFlow's servers.
    rank = tf.distribute.MultiWorkerMirroredStrategy().cluster_resolver.task_id
    # Each graph gets a new group: keys of messages must not be reused with another size.
    groups = itertools.count(_FIRST_GROUP)
    clock.measure(
        workload,
        lambda case: _make_step(rank, _Wire(next(groups)), case),
        lambda case, num_values: _make_exchange(rank, _Wire(next(groups)), num_values),
        report,
    )


def passes(rank: int, num_microbatches: int, schedule: str) -> list[Pass]:
    """Returns the passes of one of two stages in order, under "1f1b" or "eager_1f1b"."""
    num_first = min(num_microbatches, 1 if rank else (3 if schedule == "eager_1f1b" else 2))
    order: list[Pass] = [("forward", index) for index in range(num_first)]
    for index in range(num_microbatches):
        order.append(("backward", index))
        if num_first + index < num_microbatches:
            order.append(("forward", num_first + index))
    return order


class _Wire:
    """Messages of one graph between two processes, each with its own number."""

    def __init__(self, group: int) -> None:
        self._options = {"group_size": NUM_PARTS, "group_key": group, "communication_hint": "auto"}

    def send(self, value: tf.Tensor, number: int) -> tf.Operation:
        return tf.raw_ops.CollectiveBcastSendV2(input=value, instance_key=number, **self._options).op

    def recv(self, shape: Sequence[int], number: int) -> tf.Tensor:
        return tf.raw_ops.CollectiveBcastRecvV2(shape=shape, T=tf.float32, instance_key=number, **self._options)


def _make_step(rank: int, wire: _Wire, case: Case) -> clock.Call:
    """Returns a function that trains this process' stage once: dense layers with ReLU, mean squared error, SGD."""
    count, rows = case.num_microbatches, case.batch_size // case.num_microbatches
    start, end = bounds(NUM_DENSE, NUM_PARTS)[rank : rank + 2]
    limit = (3 / case.width) ** 0.5
    kernels = [tf.Variable(tf.random.uniform([case.width] * 2, -limit, limit)) for _ in range(start, end)]
    variables = kernels + [tf.Variable(tf.zeros([case.width])) for _ in kernels]
    batch = np.random.default_rng(0).standard_normal((NUM_PARTS, count, rows, case.width), dtype=np.float32)
    data = tf.Variable(batch[rank])

    def train() -> tf.Tensor:
        weights = [variable.read_value() for variable in variables]
        given = tf.unstack(data.read_value())
        # Receives are posted at once: each waits only for its message.
        received = [wire.recv([rows, case.width], 2 * index + (rank == 0)) for index in range(count)]
        under_way: dict[int, tuple[tf.GradientTape, tf.Tensor, tf.Tensor]] = {}
        totals: list[tf.Tensor] = []
        last: list[tf.Tensor] = []
        sent: list[tf.Operation] = []
        for kind, index in passes(rank, count, case.schedule):
            if kind == "forward":
                with tf.control_dependencies(last):
                    x = tf.identity(received[index] if rank else given[index])
                with tf.GradientTape() as tape:
                    tape.watch([x, *weights])
                    y = x
                    for kernel, bias in zip(weights[: len(kernels)], weights[len(kernels) :], strict=True):
                        y = tf.nn.relu(tf.linalg.matmul(y, kernel) + bias)
                    made = tf.reduce_mean((y - given[index]) ** 2) / count if rank else y
                under_way[index] = tape, x, made
                last = [made]
                if rank == 0:
                    sent.append(wire.send(made, 2 * index))
            else:
                tape, x, made = under_way.pop(index)
                with tf.control_dependencies(last):
                    upstream = tf.ones([]) if rank else tf.identity(received[index])
                *own, of_x = tape.gradient(made, [*weights, x], upstream)
                totals = [one + other for one, other in zip(totals, own, strict=True)] if totals else own
                last = totals
                if rank:
                    sent.append(wire.send(of_x, 2 * index + 1))
        updates = [
            variable.assign_sub(_LEARNING_RATE * total) for variable, total in zip(variables, totals, strict=True)
        ]
        with tf.control_dependencies([*sent, *updates]):
            return tf.ones([])

    return _in_a_graph(train)


def _make_exchange(rank: int, wire: _Wire, num_values: int) -> clock.Call:
    own = tf.Variable(tf.zeros([num_values]))

    def round_trip() -> tf.Tensor:
        value, sent = own.read_value(), []
        for index in range(clock.NUM_IN_A_ROW):
            if index % NUM_PARTS == rank:
                sent.append(wire.send(value, index))
            else:
                # Waits for its peer, which sends when it has received the previous message.
                value = wire.recv([num_values], index)
        with tf.control_dependencies(sent):
            return tf.identity(value[-1])

    return _in_a_graph(round_trip)


def _in_a_graph(function: Callable[[], tf.Tensor]) -> clock.Call:
    # Not a tf.function, which would run messages one after the other.
    wrapped = tf.compat.v1.wrap_function(function, [])
    return lambda: wrapped().numpy()
