"""Placement of a plain model on a mesh: layers split over the axis "tensor", stages over the axis "pipe"."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras

import keras_ext
from common.options import OptionError, PlacingOptions


def place(build: Callable[[], keras.Model], strategy: Any, options: PlacingOptions) -> keras.Model:
    """Returns the model placed on the strategy's mesh; the plain model if a replica has one device.

    Call it in the strategy's scope, before `compile`.

    Args:
        build: returns the plain model.
        strategy: a strategy of this package.
        options: partition, schedule and recomputation.

    Raises:
        OptionError: the model cannot be placed, for the reason given, such as fewer layers than stages.
    """
    axes = strategy.mesh.axes
    in_stages, is_split = axes.get("pipe", 1) > 1, axes.get("tensor", 1) > 1
    remat = options.remat
    if remat is not None and not in_stages and (is_split or remat != "all"):
        raise OptionError(
            f"--remat={remat}: without pipeline stages only --remat=all works, and only without split layers. "
            f"Received: a mesh of {axes}."
        )
    with keras.RematScope(mode="full") if remat and not in_stages else contextlib.nullcontext():
        model = build()
    try:
        if is_split:
            model = keras_ext.parallelize(model)
        if in_stages:
            model = keras_ext.PipelineModel(
                model,
                num_microbatches=options.microbatches,
                schedule=options.schedule,
                partition=options.partition,
                remat=remat,
            )
    except ValueError as error:
        raise OptionError(f"--mesh: {error}") from error
    return model
