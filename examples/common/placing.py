"""A plain model over the devices of a mesh: layers split over "tensor", stages over "pipe"."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras

import keras_ext
from common.options import OptionError, PlacingOptions


def place(build: Callable[[], keras.Model], strategy: Any, options: PlacingOptions) -> keras.Model:
    """The model as the strategy's mesh wants it; the model itself where every replica is one device.

    Call in the strategy's scope, before `compile`.

    Args:
        build: makes the plain model.
        strategy: one of ours.
        options: how stages are cut and scheduled, and what is computed again.

    Raises:
        OptionError: it cannot be cut into as many stages, or another reason that is given.
    """
    axes = strategy.mesh.axes
    in_stages, is_split = axes.get("pipe", 1) > 1, axes.get("tensor", 1) > 1
    remat = options.remat
    if remat is not None and not in_stages and (is_split or remat != "all"):
        raise OptionError(
            f"--remat={remat}: without stages whole layers can be computed again (--remat=all), split layers "
            f"cannot. Received: a mesh of {axes}."
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
