"""The refusals of every implementation of Collectives, and the modes in which the contract's tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives import Collectives
from tests.strategies.collectives.reference import CUBE, Tensors


class RefusalsContract:
    """The refusals that happen before any communication: every process refuses alike."""

    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        """Returns collectives over the coordinates of `axes`; `reverse` reverses the order of a process' devices."""
        raise NotImplementedError

    @pytest.fixture(params=["eager", "graph", "dynamic"])
    def mode(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def run(self, mode: str, function: Callable[[Tensors], Any], values: Tensors) -> Any:
        """Calls `function` eagerly, traced, or traced without static sizes."""
        if mode == "eager":
            return function(values)
        if mode == "graph":
            return tf.function(function, autograph=False)(values)
        specs = [tf.TensorSpec([None] * value.shape.rank, value.dtype) for value in values]
        return tf.function(function, input_signature=[specs], autograph=False)(values)

    @pytest.mark.parametrize(
        ("method", "args", "dtype", "shape", "message"),
        [
            ("all_reduce", ("row",), "float32", (2,), "Unknown mesh axis.*Received: 'row'"),
            ("all_reduce", ("data", "product"), "float32", (2,), "must be one of.*Received: 'product'"),
            ("all_reduce", ("data", "mean"), "int32", (2,), "mean of integers is not defined"),
            ("all_reduce", ("data",), "bool", (2,), "Cast the values.*Received: bool"),
            ("broadcast", ("data",), "uint8", (2,), "Cast the values.*Received: uint8"),
            ("reduce_scatter", ("data",), "float32", (7, 2), "divisible by 2.*sizes that are: 6 and 8.*7, 2"),
            ("reduce_scatter", ("data", 0, "max"), "float32", (8,), "must be one of.*Received: 'max'"),
            ("reduce_scatter", ("data", 0, "mean"), "int64", (8,), "mean of integers is not defined"),
            ("all_gather", ("data", 2), "float32", (2, 2), "2 dimensions has no dimension 2"),
            ("all_gather", ("data",), "float32", (), "0 dimensions has no dimension 0"),
            ("broadcast", ("data", 2), "float32", (2,), r"positions 0 to 1\. Received: 2"),
            ("all_to_all", ("data", 0, 1), "float32", (3, 2), "divisible by 2"),
            ("permute", ("data", [(0, 1), (0, 0)]), "float32", (2,), "sends more than once"),
            ("permute", ("data", [(0, 1), (1, 1)]), "float32", (2,), "receives more than once"),
            ("permute", ("data", [(0, 3)]), "float32", (2,), r"Received: 3"),
        ],
    )
    def test_refusals(
        self, mode: str, method: str, args: tuple[Any, ...], dtype: str, shape: tuple[int, ...], message: str
    ) -> None:
        collectives = self.make(CUBE)
        values = [tf.zeros(shape, dtype) for _ in collectives.local_indices]
        if mode != "dynamic":
            with pytest.raises(ValueError, match=message):
                self.run(mode, lambda mine: getattr(collectives, method)(mine, *args), values)

    def test_refused_lists(self) -> None:
        collectives = self.make(CUBE)
        num_local = len(collectives.local_indices)
        with pytest.raises(ValueError, match=rf"coordinate of this process: {num_local}\. Received: {num_local - 1}"):
            collectives.all_reduce([tf.zeros(2)] * (num_local - 1), "data")
        with pytest.raises(ValueError, match=r"Received: one tensor of shape \(8, 2\)"):
            collectives.all_reduce(tf.zeros((8, 2)), "data")
        with pytest.raises(ValueError, match=r"one dtype; cast them\. Received: \['float32', 'int32'"):
            collectives.all_reduce([tf.zeros(2), *[tf.zeros(2, tf.int32)] * (num_local - 1)], "data")
        with pytest.raises(ValueError, match=r"axis 'tensor' must have one shape.*'\(3,\)', '\(2,\)'"):
            collectives.all_reduce([tf.zeros(3), *[tf.zeros(2)] * (num_local - 1)], "tensor")
        with pytest.raises(ValueError, match="must have one shape except in dimension 0"):
            collectives.all_gather([tf.zeros((1, 3)), *[tf.zeros((1, 2))] * (num_local - 1)], "tensor")

    def test_refused_channels(self) -> None:
        collectives = self.make({"pipe": 2, "data": 2})
        with pytest.raises(ValueError, match="two different positions"):
            collectives.channel("pipe", 1, 1)
        with pytest.raises(ValueError, match="num_messages=0"):
            collectives.channel("pipe", 0, 1, 0)
        with pytest.raises(ValueError, match=r"positions 0 to 1\. Received: 2"):
            collectives.channel("pipe", 1, 2)
