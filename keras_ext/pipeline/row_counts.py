"""Dimensions of what stages make that are multiples of the number of rows of a micro-batch.

The receiver of a message has to know the shape of what comes. Where it is not known when a function is traced, because
batches differ in their rows, it mostly follows from the number of rows, which every process knows. So it need not be
sent, for which the receiver would wait once more.

The stages are traced for a number of rows that is a large prime: a dimension that is a multiple of it is that multiple
of the rows. Nothing is computed. Its contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_ext.pipeline.stage import Stage
from keras_ext.tensor_metadata import MASK, metadata_of
from strategies import layer_api

#: Of each dimension of a tensor how many times the number of rows it is; None if it is something else.
Multiples = tuple[int | None, ...]


class RowCounts:
    """Multiples of the rows of a micro-batch among the dimensions of what stages make.

    Args:
        stages: of the model, all of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._found: dict[Any, Mapping[tuple[str, int], Multiples]] = {}

    def of(self, inputs: Mapping[int, Any], training: bool | None) -> Mapping[tuple[str, int], Multiples]:
        """Returns them by "outputs" or "masks" and the `id` of Keras' tensors; none of what is not known.

        Args:
            inputs: of the model, by the `id` of Keras' tensors: those of a micro-batch, or None.
            training: as layers take it.
        """
        shapes = {key: tuple(value.shape) for key, value in inputs.items() if value is not None}
        key = training, tuple(shapes.items())
        if key not in self._found:
            try:
                self._found[key] = self._traced(inputs, training)
            except Exception:
                # A layer may take certain numbers of rows only, and have any error of others. Then shapes are sent. An
                # error that it has of the batch itself comes up where it is computed.
                self._found[key] = {}
        return self._found[key]

    def _traced(self, inputs: Mapping[int, Any], training: bool | None) -> dict[tuple[str, int], Multiples]:
        def made_of(inputs: Mapping[int, Any]) -> dict[tuple[str, int], Any]:
            values, found = dict(inputs), dict[tuple[str, int], Any]()
            for stage in self._stages:
                made = stage.compute([values[id(tensor)] for tensor in stage.inputs], training, [])
                keys = [id(tensor) for tensor in stage.outputs]
                values.update(zip(keys, made, strict=True))
                for name, own in (("outputs", made), ("masks", metadata_of(made, MASK))):
                    found.update({(name, key): each for key, each in zip(keys, own, strict=True) if each is not None})
            return found

        specs = layer_api.shapes_of(made_of, dict(inputs))
        return {key: tuple(map(_multiple, spec.shape)) for key, spec in specs.items()}


def _multiple(size: int | None) -> int | None:
    rows = layer_api.SYMBOLIC_ROWS
    return size // rows if size is not None and size % rows == 0 and 0 < size < rows**2 else None
