"""``ReplicaContext.all_reduce`` in a custom step of Keras' trainer: means are weighted, and wrong sums cause a warning.

On one device it returns its input. Here a sum adds up the replicas' parts of a sum over rows, with the same result. A
mean of means over rows is weighted by rows. The sum of a value that is the same on all replicas, such as a gradient, is
a multiple of the value on one device: that is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import ReplicaContext
from strategies.batches import shares
from strategies.batches.program_lines import is_called_by_program
from strategies.batches.row_kinds import Kind
from strategies.batches.row_warnings import warn

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def install() -> None:
    """Wraps ``all_reduce``, which programs call in replicas."""
    wrap(next(cls for cls in ReplicaContext.__mro__ if "all_reduce" in vars(cls)), "all_reduce", _all_reduce)


def _all_reduce(
    original: Callable[..., Any], context: ReplicaContext, reduce_op: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    share = shares.current()
    if (
        share is None
        or not share.in_trainer
        or share.num_replicas == 1
        or not is_called_by_program("tensorflow.python.autograph")
    ):
        return original(context, reduce_op, value, *args, **kwargs)
    op = tf.distribute.ReduceOp[reduce_op.upper()] if isinstance(reduce_op, str) else reduce_op
    kinds = {share.dependence.kind(leaf) for leaf in tf.nest.flatten(value)}
    if op == _MEAN and kinds == {Kind.MEAN}:
        return original(context, _SUM, tf.nest.map_structure(share.weigh, value), *args, **kwargs)
    if op == _SUM and kinds & {Kind.SAME, Kind.MEAN}:
        what = "the same on all replicas" if Kind.SAME in kinds else "a mean over each replica's rows"
        warn(
            f"What all_reduce sums here is {what}, so that the sum is a multiple of what one device has",
            "Leave all_reduce out: gradients with respect to weights are those of the global batch where they are "
            "taken, and means over rows are averaged over replicas. Sum sums over rows with it, or counts.",
        )
    return original(context, reduce_op, value, *args, **kwargs)
