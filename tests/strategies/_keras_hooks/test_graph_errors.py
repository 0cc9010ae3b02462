"""Errors of a running step show the line of the op that failed, on whichever replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies


class Rows(keras.layers.Layer):
    """Reads rows of a table; in a function of its own, or not."""

    def __init__(self, *, in_function: bool) -> None:
        super().__init__()
        self.read = tf.function(self._read) if in_function else self._read

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(4, 2))

    def call(self, x: Any) -> Any:
        return self.read(x)

    def _read(self, x: Any) -> Any:
        return tf.raw_ops.GatherV2(params=self.table.value, indices=x, axis=0)  # here


def line() -> str:
    [number] = [i for i, each in enumerate(Path(__file__).read_text().split("\n"), 1) if each.endswith("# here")]
    return f'"{__file__}", line {number}, in _read'


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("in_loop", [False, True])
def test_the_line_is_shown_for_each_replica(in_function: bool, in_loop: bool) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        rows = Rows(in_function=in_function)
        model = keras.Sequential([keras.Input((), dtype="int32"), rows])
        model.compile("sgd", "mse", jit_compile=False)

    @tf.function
    def loop(x: Any) -> Any:
        return strategy.run(model, args=(x,))

    def run(x: Any) -> None:
        if in_loop:
            loop(next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x)))))
        else:
            model.fit(x, np.zeros((4, 2)), batch_size=4, verbose=0, shuffle=False)

    for wrong in (0, 3):
        x = np.zeros(4, "int32")
        x[wrong] = 9
        with pytest.raises(tf.errors.InvalidArgumentError, match="9 is not in") as caught:
            run(x)
        assert line() in str(caught.value)
        if not in_function:
            # "{{node ...}}" is the op that failed. TensorFlow may append an op that waited for it, of either replica.
            assert ("{{node replica_1/" in str(caught.value)) == (wrong == 3)
