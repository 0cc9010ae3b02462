"""Finds the dimensions of stages' outputs that are multiples of the number of rows of a micro-batch.

The receiver of a message has to know its shape. If a shape is not known when a function is traced, because batches
differ in their number of rows, it mostly follows from that number, which every process knows. Then the shape need not
be sent, which saves the receiver one wait.

The stages are traced with a large prime as the number of rows: a dimension that is n times the prime is n times the
number of rows. Nothing is computed. The contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_ext.pipeline.stage import Stage
from keras_ext.tensor_metadata import MASK, metadata_of
from strategies import layer_api

#: For each dimension of a tensor, its size divided by the number of rows; None if it is not a multiple.
Multiples = tuple[int | None, ...]


class RowCounts:
    """The dimensions of stages' outputs as multiples of the number of rows of a micro-batch.

    Args:
        stages: all stages of the model.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._found: dict[Any, Mapping[tuple[str, int], Multiples]] = {}

    def multiples(self, inputs: Mapping[int, Any], training: bool | None) -> Mapping[tuple[str, int], Multiples]:
        """Returns the multiples by "outputs" or "masks" and the `id` of the Keras tensor; empty if tracing fails.

        Args:
            inputs: the model's inputs for a micro-batch, by the `id` of Keras' tensors; None for an optional input that
                is not given.
            training: the `training` argument of layers.
        """
        shapes = {key: tuple(value.shape) for key, value in inputs.items() if value is not None}
        key = training, tuple(shapes.items())
        if key not in self._found:
            try:
                self._found[key] = self._traced(inputs, training)
            except Exception:
                # A layer may accept only certain numbers of rows, and raise any error for others; then shapes are sent.
                # An error caused by the batch itself is raised again where the batch is computed.
                self._found[key] = {}
        return self._found[key]

    def _traced(self, inputs: Mapping[int, Any], training: bool | None) -> dict[tuple[str, int], Multiples]:
        def trace(inputs: Mapping[int, Any]) -> dict[tuple[str, int], Any]:
            values, found = dict(inputs), dict[tuple[str, int], Any]()
            for stage in self._stages:
                made = stage.compute([values[id(tensor)] for tensor in stage.inputs], training, [])
                keys = [id(tensor) for tensor in stage.outputs]
                values.update(zip(keys, made, strict=True))
                for name, own in (("outputs", made), ("masks", metadata_of(made, MASK))):
                    found.update({(name, key): each for key, each in zip(keys, own, strict=True) if each is not None})
            return found

        specs = layer_api.shapes_of(trace, dict(inputs))
        return {key: tuple(map(_multiple, spec.shape)) for key, spec in specs.items()}


def _multiple(size: int | None) -> int | None:
    rows = layer_api.SYMBOLIC_ROWS
    return size // rows if size is not None and size % rows == 0 and 0 < size < rows**2 else None
