"""Horovod without a strategy, in its process."""

from __future__ import annotations

from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf
from harness.workers import Report

from all_reduce import reducing
from all_reduce.cases import Case


def run(all_cases: Sequence[Case], report: Report) -> None:
    """Reduces until the benchmark ends."""
    tf.get_logger().setLevel("ERROR")
    hvd.init()
    reducing.measure(_reduce, all_cases, report)


def _reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    # One by one, as `DistributedGradientTape` does: Horovod fuses tensors that arrive together.
    return [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors]
