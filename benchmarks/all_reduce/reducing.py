"""A contender that is a strategy, in its process: sums in a tf.function, as gradients are summed in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
from harness.workers import Report

import strategies
from all_reduce import clock
from all_reduce.cases import Case

Reduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]


def run(name: str, all_cases: Sequence[Case], report: Report) -> None:
    """Reduces until the benchmark ends; call it before TensorFlow has started in this process."""
    tf.get_logger().setLevel("ERROR")
    measure(make_reduce(name), all_cases, report)


def measure(reduce: Reduce, all_cases: Sequence[Case], report: Report) -> None:
    """Reports the rates of `reduce`, called in a tf.function."""

    def make_call(case: Case) -> Callable[[], object]:
        values = [tf.random.uniform([size]) for size in case.tensor_sizes]
        function = tf.function(lambda *tensors: reduce(list(tensors)), autograph=False)
        return lambda: function(*values)

    clock.measure(all_cases, make_call, report)


def make_reduce(name: str) -> Reduce:
    """Returns the function that sums tensors over the processes of a contender."""
    match name:
        case "multi_worker" | "horovod":
            make = strategies.MultiWorkerMirroredStrategy if name == "multi_worker" else strategies.HorovodStrategy
            return make().extended.engine.process_group.sum
        case "stock":
            return _stock()
    raise ValueError(f"Expected multi_worker, horovod or stock. Received: {name!r}.")


def _stock() -> Reduce:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def in_replica(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        # The path of gradients; `Strategy.reduce` ends in the same collective ops. It needs tensors with a device,
        # which a function's arguments do not have.
        placed = [tf.identity(tensor) for tensor in tensors]
        return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

    return lambda tensors: strategy.run(in_replica, args=(tensors,))
