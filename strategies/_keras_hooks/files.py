"""Files: of all processes, rank 0 writes, and what it writes appears whole or not at all.

Nothing in Keras knows of other processes: all of them would write the same path. Every process may call ``save``, as
callbacks do, or rank 0 alone, as programs for Horovod do. Before a file is read, all processes meet, so that what rank
0 wrote is there. A folder that another process made in the meantime is as good as one's own.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src import export as keras_export
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_api, saving_lib
from keras.src.utils import file_utils

from strategies._keras_hooks.wrapping import engine_of, wrap
from strategies.engine import DataParallelExtended
from strategies.restoring import is_alone
from strategies.variables import MetricVariable


def install() -> None:
    """Wraps the functions that write and read files of models."""
    wrap(saving_lib, "save_model", _save, in_step=False)
    wrap(saving_lib, "save_weights_only", _save, in_step=False)
    wrap(legacy_h5_format, "save_model_to_hdf5", _save, in_step=False)
    wrap(keras_export, "export_saved_model", _save, in_step=False)
    wrap(saving_api, "load_weights", _load_weights, in_step=False)
    wrap(file_utils, "makedirs", _makedirs, in_step=False)
    for public in (keras.models, keras.saving):
        wrap(public, "load_model", _load_model, in_step=False)


def _engine(model: Any) -> DataParallelExtended | None:
    """Returns the model's engine if other processes take part in it."""
    engine = engine_of(getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy())
    return None if engine is None or engine.crossing is None else engine


def _save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    engine = _engine(model)
    if engine is None:
        return original(model, filepath, *args, **kwargs)
    optimizer = getattr(model, "optimizer", None)
    parts = [v.value for v in getattr(optimizer, "variables", []) if isinstance(v.value, MetricVariable)]
    # Sums that the processes hold parts of are read by all, before one of them writes.
    with engine.presummed(parts):
        if engine.crossing is not None and engine.crossing.rank > 0:
            return None
        if not isinstance(filepath, (str, os.PathLike)) or "://" in str(filepath):
            return original(model, filepath, *args, **kwargs)
        path = pathlib.Path(filepath)
        # Beside the target, so that it can be moved in one go, and named like it: Keras looks at the ending.
        unfinished = path.with_name(f".{os.getpid()}.unfinished.{path.name}")
        for left in path.parent.glob(".*.unfinished.*"):
            # By a program that was killed while it wrote this file.
            if left.name.endswith(f".unfinished.{path.name}") and left.is_file():
                left.unlink(missing_ok=True)
        try:
            result = original(model, str(unfinished), *args, **kwargs)
            if path.is_dir():
                shutil.rmtree(path)
            unfinished.replace(path)
        finally:
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            else:
                unfinished.unlink(missing_ok=True)
        return result


def _makedirs(original: Callable[..., Any], path: Any) -> Any:
    """Keras makes a folder that it has not seen, as callbacks on all processes do: one comes first."""
    try:
        return original(path)
    except FileExistsError:
        if not pathlib.Path(path).is_dir():
            raise
        return None


def _load_weights(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    _meet(_engine(model))
    return original(model, *args, **kwargs)


def _load_model(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _meet(_engine(None))
    return original(*args, **kwargs)


def _meet(engine: DataParallelExtended | None) -> None:
    if engine is not None and engine.crossing is not None and not is_alone():
        engine.crossing.barrier()
