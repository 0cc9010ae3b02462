"""Files of Keras' legacy format (``model.h5``): a split, staged or sharded model is written as a plain copy.

The format stores variables by name and layers by config, and has no hook for how they are written. So a model that is
split, in stages or sharded is first copied into the plain model that its ``.keras`` file would give.
"""

from __future__ import annotations

import contextvars
import pathlib
import tempfile
import threading
from collections.abc import Callable
from typing import TypeVar

import keras
import tensorflow as tf
from keras.src.saving import saving_lib

from strategies._keras_hooks.plain_classes import is_plain
from strategies.replica.splitting import joined

_Result = TypeVar("_Result")


def plain_form(model: keras.Model) -> keras.Model:
    """Returns the model itself if it is plain, else the plain model that its ``.keras`` file gives."""
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer is not None else ())]
    layers = model._flatten_layers()
    has_parts = any(whole is not own for whole, own in zip(joined(variables), variables, strict=False))
    if not has_parts and all(map(is_plain, map(type, layers))):
        return model
    own = {type(layer).__name__: type(layer) for layer in layers if is_plain(type(layer))}

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        saving_lib.save_model(model, path)
        return _without_strategy(lambda: saving_lib.load_model(path, custom_objects=own, safe_mode=False))


def _without_strategy(function: Callable[[], _Result]) -> _Result:
    """Calls a function outside of any strategy's scope, in a new thread, because a thread cannot suspend its scope."""
    if not tf.distribute.has_strategy():
        return function()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
