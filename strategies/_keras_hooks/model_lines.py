"""Lines of text that describe a model and how it was compiled, for the comparison between processes.

The lines are meaningful to the user: an error shows those that differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras

from strategies.replica.owners import coordinates_of


def describe_model(model: keras.Model) -> Iterator[str]:
    """Yields lines about a model's layers and variables, those most likely to differ first."""
    for layer in model._flatten_layers():
        name = _plain(layer.name)
        yield f"layer {name} of class {type(layer).__name__}"
        for setting, value in _settings(layer).items():
            yield f"layer {name}({setting}={value})"
        starts = getattr(getattr(layer, "partition", None), "starts", None)
        if starts is not None:
            chosen = [getattr(layer, name, None) for name in ("num_microbatches", "_schedule_name")]
            yield f"pipeline with stages that begin at {starts}, micro-batches and schedule {chosen}"
    for variable in model.variables:
        coordinates = {axis: sorted(at) for axis, at in sorted(coordinates_of(variable).items())}
        yield f"variable {_plain(variable.path)} {tuple(variable.shape)} {variable.dtype} at {coordinates}"


def describe_compile(model: keras.Model) -> Iterator[str]:
    """Yields lines about the arguments of a model's ``compile``."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        for name, value in optimizer.get_config().items():
            if name != "name":
                yield f"optimizer {type(optimizer).__name__}({name}={_stable(value)})"
    if model._compile_loss is not None:
        yield f"loss {_names(model._compile_loss._user_loss)}"
    if model._compile_metrics is not None:
        yield f"metrics {_names([model._compile_metrics._user_metrics, model._compile_metrics._user_weighted_metrics])}"
    for name in ("steps_per_execution", "run_eagerly", "jit_compile"):
        yield f"compile({name}={getattr(model, name, None)})"


def _settings(layer: keras.Layer) -> dict[str, Any]:
    """Returns the configuration of a layer; of a model only dtype and `trainable`: its layers are described by line."""
    try:
        config = {} if isinstance(layer, keras.Model) else layer.get_config()
    except Exception:
        # `get_config` fails in some layers of users and of well-known packages.
        config = {}
    return {name: _plain(_stable(value)) for name, value in config.items() if name != "name"} | {
        "dtype": layer.dtype_policy.name,
        "trainable": layer.trainable,
    }


def _plain(path: str) -> str:
    # Keras numbers the names of layers: a process that has made other models before has other numbers.
    return re.sub(r"_\d+(?=/|'|$)", "", path)


def _stable(config: Any) -> str:
    # The default `repr` of functions and objects contains their address.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(config))


def _names(given: Any) -> list[str]:
    names = [getattr(each, "name", getattr(each, "__name__", _stable(each))) for each in keras.tree.flatten(given)]
    # Without Keras' numbers, which count the other objects that a process has made.
    return [_plain(str(name)) for name in names]
