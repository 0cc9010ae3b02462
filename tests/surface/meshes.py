"""The meshes of the grid: how the model is distributed over devices, and its training options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_ext
import strategies


@dataclass(frozen=True)
class Mesh:
    """A way to train.

    Attributes:
        axes: axes of the mesh.
        arguments: arguments of the strategy, besides the mesh.
        accumulates: whether the optimizer updates weights in every second step only.
    """

    axes: Mapping[str, int]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    accumulates: bool = False

    @property
    def count(self) -> int:
        """The number of devices."""
        count = 1
        for size in self.axes.values():
            count *= size
        return count

    def strategy(self) -> Any:
        """Returns a strategy on CPU devices."""
        devices = [f"CPU:{i}" for i in range(self.count)]
        return strategies.MirroredStrategy(devices, mesh=dict(self.axes), **self.arguments)

    def spread(self, build: Callable[[], Any]) -> Any:
        """Returns the model that `build` makes, split as the axes say; call it in the strategy's scope."""
        model = build()
        if "tensor" in self.axes:
            model = keras_ext.parallelize(model)
        if "pipe" in self.axes:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        return model


MESHES: Mapping[str, Mesh] = {
    "data=2": Mesh({"data": 2}),
    "shard=optimizer": Mesh({"data": 2}, {"shard": "optimizer"}),
    "shard=weights": Mesh({"data": 2}, {"shard": "weights"}),
    "tensor=2": Mesh({"tensor": 2}),
    "data x tensor": Mesh({"data": 2, "tensor": 2}),
    "pipe=2": Mesh({"pipe": 2}),
    "accumulation": Mesh({"data": 2}, accumulates=True),
}


@contextlib.contextmanager
def policy(name: str) -> Any:
    """Context manager: makes layers in the block with a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
