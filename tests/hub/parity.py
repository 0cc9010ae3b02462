"""Trains a small backbone of KerasHub on a mesh, and compares it with plain Keras on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from tests.hub import backbones
from tests.strategies.parity.harness import largest

CELLS: Mapping[str, Mapping[str, int]] = {
    "data=2": {"data": 2},
    "tensor=2": {"tensor": 2},
    "tensor=4": {"tensor": 4},
    "pipe=2": {"pipe": 2},
    "pipe=4": {"pipe": 4},
    "data=2, tensor=2": {"data": 2, "tensor": 2},
}
LIMIT = 2e-6
ROWS = 8
# A model whose rounding grows by more than this is compared with itself, started one rounding away.
_GROWS = 10.0


@dataclass(frozen=True)
class Cell:
    """The outcome on one mesh.

    Attributes:
        difference: the largest of weights and losses, relative where they are above 1; None if it was not trained.
        share: the fraction of the weights that is split over "tensor".
        reason: why it was not trained, or why the difference is above the limit; else empty.
    """

    difference: float | None = None
    share: float = 0.0
    reason: str = ""


def measured(name: str, cells: Sequence[str]) -> Iterator[tuple[str, Cell]]:
    """Trains a backbone once in plain Keras, and then on meshes; yields the outcome of each mesh."""
    one = _Backbone(name)
    for cell in cells:
        yield cell, one.on(CELLS[cell])


class _Backbone:
    def __init__(self, name: str) -> None:
        self._name = name
        model = backbones.build(name)
        self._inputs = backbones.inputs_of(model, ROWS)
        self._targets = backbones.targets_of(model, self._inputs)
        self._has_statistics = any(
            isinstance(each, keras.layers.BatchNormalization) for each in model._flatten_layers()
        )
        #: The reason why the rows of a batch depend on each other; empty if they do not.
        self._couples_rows = "" if self._has_statistics else coupling(model, self._inputs)
        self._plain = self._trained(model)

    def on(self, axes: Mapping[str, int]) -> Cell:
        """Returns the outcome on a mesh."""
        if "data" in axes and self._couples_rows:
            return Cell(reason=self._couples_rows)
        count = int(np.prod(list(axes.values())))
        strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(count)], mesh=axes)
        share = 0.0
        with strategy.scope():
            model = backbones.build(self._name)
            if "data" in axes:
                model = _synchronized(model)
            if "tensor" in axes:
                share = keras_ext.default_plan(model).split_share
                model = keras_ext.parallelize(model)
            if "pipe" in axes:
                together = self._has_statistics or self._couples_rows
                try:
                    model = keras_ext.PipelineModel(model, num_microbatches=1 if together else 2, partition="uniform")
                except ValueError as error:
                    if "cannot be parted" in str(error):
                        return Cell(reason="too few layers: what it is made of cannot be parted")
                    if "hold the same layer" in str(error):
                        return Cell(reason="layers of several stages hold the same layer")
                    if "would lose weights" in str(error):
                        return Cell(
                            reason="weights that the model itself holds, in no layer: stages are made of layers"
                        )
                    if "in its own way" in str(error):
                        return Cell(
                            reason="a loss of the model's own class (compute_loss), which a pipeline would not use"
                        )
                    raise
            difference = largest(self._plain, self._trained(model))
        if difference <= LIMIT:
            return Cell(difference, share)
        reason = self._growth(difference)
        if not reason and "data" in axes and self._has_statistics:
            reason = self._growth_of_synchronized(difference)
        return Cell(difference, share, reason)

    def _growth(self, difference: float) -> str:
        """Returns the reason for a difference, if a single rounding causes a similar one in plain Keras."""
        model = backbones.build(self._name)
        model.set_weights(
            [np.nextafter(w, np.inf, dtype=w.dtype) if w.dtype.kind == "f" else w for w in model.get_weights()]
        )
        own = largest(self._plain, self._trained(model))
        return f"plain Keras, begun one rounding away, differs by {own:.1e}" if difference < _GROWS * own else ""

    def _growth_of_synchronized(self, difference: float) -> str:
        """Returns the reason for a difference, if synchronized statistics cause a similar one on one device."""
        with strategies.MirroredStrategy(["CPU:0"]).scope():
            model = _synchronized(backbones.build(self._name))
            own = largest(self._plain, self._trained(model))
        return (
            f"BatchNormalization(synchronized=True) on one device differs by {own:.1e}"
            if difference < _GROWS * own
            else ""
        )

    def _trained(self, model: Any) -> list[Any]:
        """Returns the weights after three steps each of SGD and Adam, and the losses."""
        losses = backbones.losses_of(model)
        found: list[Any] = []
        # A key bias has a gradient of zero up to rounding, which Adam would magnify.
        for optimizer in (keras.optimizers.SGD(0.01), keras.optimizers.Adam(1e-3, epsilon=1e-3)):
            model.compile(optimizer, loss=losses)
            history = model.fit(
                self._inputs, self._targets, batch_size=ROWS, epochs=3, shuffle=False, verbose=0
            ).history
            found += [np.asarray(history["loss"]), *model.get_weights()]
        return found


def coupling(model: Any, inputs: Any) -> str:
    """Returns the reason why the rows of a batch depend on each other; empty if they do not."""
    rows = len(keras.tree.flatten(inputs)[0])
    halves = [_rows(inputs, slice(i, i + rows // 2)) for i in (0, rows // 2)]
    added = [_added_losses(model, each) for each in (inputs, *halves)]
    # Not compared with the limit: a dependence on other rows causes far larger differences than rounding.
    if not np.allclose(added[0], (added[1] + added[2]) / 2, rtol=1e-4):
        return "a loss that a layer adds, as one that balances experts, is no mean over rows"
    whole = keras.tree.flatten(model(inputs))
    for output, *parts in zip(whole, *(keras.tree.flatten(model(half)) for half in halves), strict=True):
        if output.shape[:1] != (rows,):
            continue
        joined = np.concatenate([np.asarray(part, "float64") for part in parts])
        if joined.shape != output.shape or not np.allclose(joined, np.asarray(output, "float64"), atol=1e-4):
            return "what it makes of a row depends on the other rows of the batch, in plain Keras, too"
    return ""


def _synchronized(model: Any) -> Any:
    """Makes batch normalization use all rows of a batch; returns the model."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
    return model


def _added_losses(model: Any, inputs: Any) -> np.ndarray:
    model(inputs, training=True)
    return np.asarray([float(loss) for loss in model.losses])


def _rows(inputs: Any, rows: slice) -> Any:
    return keras.tree.map_structure(lambda value: value[rows], inputs)
