"""A contender that is a strategy, inside its process: sums in a tf.function, as gradients are summed in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
from harness.workers import Report

import strategies
from all_reduce import clock
from all_reduce.cases import Case

Reduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]


def run(name: str, all_cases: Sequence[Case], report: Report) -> None:
    """Reduces in a process that has not used TensorFlow yet, until nobody asks any more."""
    tf.get_logger().setLevel("ERROR")
    measure(make_reduce(name), all_cases, report)


def measure(reduce: Reduce, all_cases: Sequence[Case], report: Report) -> None:
    """Reports what `reduce`, called in a tf.function, reaches."""

    def make_call(case: Case) -> Callable[[], object]:
        values = [tf.random.uniform([size]) for size in case.tensor_sizes]
        function = tf.function(lambda *tensors: reduce(list(tensors)), autograph=False)
        return lambda: function(*values)

    clock.measure(all_cases, make_call, report)


def make_reduce(name: str) -> Reduce:
    """Returns the function that sums tensors over the processes of the contender of that name."""
    match name:
        case "multi_worker" | "horovod":
            make = strategies.MultiWorkerMirroredStrategy if name == "multi_worker" else strategies.HorovodStrategy
            return make().extended.process_group.sum
        case "stock":
            return _stock()
    raise ValueError(f"Expected multi_worker, horovod or stock. Received: {name!r}.")


def _stock() -> Reduce:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def in_replica(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        # The way of gradients, and of `Strategy.reduce` as well: both end in the same collective ops. They ask for
        # tensors with a device, which a function's arguments have not.
        placed = [tf.identity(tensor) for tensor in tensors]
        return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

    return lambda tensors: strategy.run(in_replica, args=(tensors,))
