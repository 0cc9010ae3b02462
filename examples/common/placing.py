"""A plain model over the devices of a mesh: layers split over "tensor", stages over "pipe"."""

from __future__ import annotations

from typing import Any

import keras

import keras_ext
from common.options import OptionError, PlacingOptions


def place(model: keras.Model, strategy: Any, options: PlacingOptions) -> keras.Model:
    """The model as the strategy's mesh wants it; the model itself where every replica is one device.

    Call in the strategy's scope, before `compile`.

    Raises:
        OptionError: it cannot be cut into as many stages, or another reason that is given.
    """
    axes = strategy.mesh.axes
    if options.remat is not None and axes.get("pipe", 1) == 1:
        raise OptionError(f"--remat={options.remat} is of stages: give --mesh an axis pipe, as in pipe=2.")
    try:
        if axes.get("tensor", 1) > 1:
            model = keras_ext.parallelize(model)
        if axes.get("pipe", 1) > 1:
            model = keras_ext.PipelineModel(
                model,
                num_microbatches=options.microbatches,
                schedule=options.schedule,
                partition=options.partition,
                remat=options.remat,
            )
    except ValueError as error:
        raise OptionError(f"--mesh: {error}") from error
    return model
