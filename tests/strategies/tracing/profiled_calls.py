"""Reads the profile of a function with a call and a dataset. The argument is a folder for the profile."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import tensorflow as tf

from strategies.tracing import profile
from strategies.tracing.events import INPUT


def main(folder: Path) -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x, name="inner_product")

    @tf.function
    def outer(iterator: tf.data.Iterator) -> tf.Tensor:
        with tf.name_scope("outer_scope"):
            return tf.reduce_sum(inner(next(iterator)), name="total")

    iterator = iter(tf.data.Dataset.from_tensors(tf.ones([64, 64])).repeat())
    outer(iterator)
    began = time.time_ns()
    tf.profiler.experimental.start(str(folder))
    for _ in range(10):
        outer(iterator)
    tf.profiler.experimental.stop()
    ended = time.time_ns()
    found = profile.read(folder)
    assert all(began <= each.begin <= each.end <= ended for each in found)
    products = [each for each in found if each.name == "inner_product"]
    totals = [each for each in found if each.name == "outer_scope/total"]
    assert [len(products), len(totals)] == [10, 10]
    assert {(each.kind, each.is_call) for each in totals} == {("Sum", False)}
    calls = sorted((each for each in found if each.kind == "PartitionedCall"), key=lambda each: each.begin)
    for call, product in zip(calls, sorted(products, key=lambda each: each.begin), strict=True):
        assert call.is_call
        assert call.name.startswith("outer_scope/")
        assert call.begin <= product.begin <= product.end <= call.end
    assert [each.kind for each in found if "IteratorGetNextOp" in each.name] == [INPUT] * 10


if __name__ == "__main__":
    main(Path(sys.argv[1]))
