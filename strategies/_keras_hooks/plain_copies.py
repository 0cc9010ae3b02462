"""Plain copies of models: the same layers and weights, outside of any strategy.

Tested in ``tests/strategies/_keras_hooks/test_comparisons.py`` and, for exported models, in the tests of files.
"""

from __future__ import annotations

import contextvars
import pathlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import Trainer, saving_lib
from strategies._keras_hooks.plain_classes import is_plain
from strategies._keras_hooks.wrapping import overrides
from strategies.replica.whole_weights import joined

_Result = TypeVar("_Result")


def plain_form(model: keras.Model) -> keras.Model:
    """Returns the model itself if it is plain, else a plain copy.

    Keras' legacy format (``model.h5``) stores variables by name and layers by config, and has no hook for how they are
    written. So a model that is split, in stages or sharded is first copied into its plain form. So is a model that is
    exported while processes own only parts of it.
    """
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer is not None else ())]
    has_parts = any(whole is not own for whole, own in zip(joined(variables), variables, strict=False))
    # The classes that the program chose: a model of our strategies has a subclass.
    if not has_parts and all(is_plain(layer.__class__) for layer in model._flatten_layers()):
        return model
    return plain_copy(model)


def plain_copy(model: keras.Model) -> keras.Model:
    """Returns the plain model that the model's ``.keras`` file gives, compiled as it is.

    Where each process owns only some of the variables, call it in a function that rank 0 runs for all.
    """
    custom = _custom_objects(model)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        saving_lib.save_model(model, path)
        return without_strategy(lambda: saving_lib.load_model(path, custom_objects=custom, safe_mode=False))


def compile_alike(copy: keras.Model, model: keras.Model) -> None:
    """Compiles a plain copy with the arguments of the model's `compile`, if its class overrides that.

    Keras does not compile such a model when it is loaded, and a task of KerasHub then has other arguments.
    """
    config = model.get_compile_config()
    if overrides(copy, Trainer, "compile") and config is not None:
        with keras.saving.custom_object_scope(_custom_objects(model)):
            copy.compile(**keras.saving.deserialize_keras_object(config))


def _custom_objects(model: keras.Model) -> dict[str, Any]:
    """Returns by name the classes of layers that are the program's or Keras', and the parts of `compile`."""
    layers = {each.__class__.__name__: each.__class__ for each in model._flatten_layers() if is_plain(each.__class__)}
    return {**dict(_parts_of_compile(model)), **layers}


def _parts_of_compile(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Yields by name the functions, and the classes of the objects, that the program gave to ``compile``."""
    config = getattr(model, "_compile_config", None)
    for each in keras.tree.flatten({} if config is None else config.config):
        found = each if isinstance(each, type) or (callable(each) and hasattr(each, "__name__")) else type(each)
        if found.__module__.partition(".")[0] not in ("builtins", "keras", "keras_hub"):
            yield found.__name__, found


def without_strategy(function: Callable[[], _Result]) -> _Result:
    """Calls a function outside of any strategy's scope: in a new thread, as a thread cannot suspend its scope."""
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
