"""The model on the devices of a mesh: layers split over "tensor", stages along "pipe"."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import keras

import keras_ext
from common.options import OptionError
from gpt.options import Options


def place(build: Callable[[], keras.Model], axes: Mapping[str, int], options: Options) -> Any:
    """Makes the model in the scope of a strategy, with what the axes of its mesh ask for.

    Args:
        build: makes the plain model.
        axes: the mesh' axes and their sizes.
        options: how stages are cut, scheduled, and computed again.

    Raises:
        OptionError: the model cannot be cut or split like this, for the reason given.
    """
    in_stages = axes.get("pipe", 1) > 1
    if options.remat in ("all", "all_but_last") and not in_stages:
        raise OptionError(
            f"--remat={options.remat} is of whole stages, and --mesh={options.mesh or ''} has no axis 'pipe'. Take "
            "--remat=layers."
        )
    scope = keras.RematScope(mode="full") if options.remat == "layers" else contextlib.nullcontext()
    with scope:
        model = build()
        try:
            if axes.get("tensor", 1) > 1:
                model = keras_ext.parallelize(model)
            if in_stages:
                model = keras_ext.PipelineModel(
                    model,
                    num_microbatches=options.microbatches,
                    schedule=options.schedule,
                    partition=_partition(options.partition),
                    remat=options.remat if options.remat in ("all", "all_but_last") else None,
                )
        except ValueError as error:
            raise OptionError(f"--mesh={options.mesh}: {error}") from error
    return model


def _partition(flag: str) -> str | list[str]:
    """A way to cut, or the layers at which stages begin, with commas between them."""
    return flag if flag in ("time", "parameters", "uniform") else flag.split(",")
