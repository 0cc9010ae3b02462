"""Hooks into the functions that write and read files of models: Keras does not know of other processes.

All processes would write the same path. ``saving.one_writer`` decides which process writes, and for what the others
wait.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Concatenate

import keras
import tensorflow as tf

from strategies._keras_hooks import watching
from strategies._keras_hooks.addresses import legacy_h5_format, saving_api, saving_lib
from strategies._keras_hooks.plain_copies import plain_form
from strategies._keras_hooks.stored_values import reading_in_ranges
from strategies._keras_hooks.wrapping import Rest, Result, wrap
from strategies.engine.engine import Engine, engine_of, engine_of_processes
from strategies.saving.driving import drive
from strategies.saving.late_errors import late_errors, open_late
from strategies.saving.one_writer import wait_until_written, write_on_rank_0
from strategies.saving.restoring import variables_of
from strategies.saving.unread_files import current_loading
from strategies.steps.exported_weights import owns_all
from strategies.steps.partial_sums import accumulators_of, check_known


def install() -> None:
    """Wraps the functions that write and read files of models."""
    wrap(saving_lib, "save_model", _save, in_step=False)
    wrap(saving_lib, "save_weights_only", _save, in_step=False)
    wrap(legacy_h5_format, "save_model_to_hdf5", _save_legacy, in_step=False)
    wrap(saving_lib.H5IOStore, "_get_h5_file", _get_h5_file, in_step=False)
    wrap(saving_lib, "is_memory_sufficient", _is_memory_sufficient, in_step=False)
    wrap(saving_lib, "_load_state", _load_state, in_step=False)
    wrap(saving_lib, "_raise_loading_failure", _raise_loading_failure, in_step=False)
    wrap(saving_api, "load_weights", _load_weights, in_step=False)
    wrap(keras.saving, "load_weights", _load_weights, in_step=False)
    wrap(keras.layers.TFSMLayer, "__init__", _load_layer, in_step=False)
    for public in (keras.models, keras.saving):
        wrap(public, "load_model", _load_model, in_step=False)


def _engine(model: keras.Model | None) -> Engine | None:
    """Returns the engine of the model, or of the current strategy, if its job has several processes."""
    return engine_of_processes(getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy())


def _reading(engine: Engine | None) -> contextlib.AbstractContextManager[None]:
    spans = engine is not None and engine.parts.spans_processes
    return reading_in_ranges() if spans else contextlib.nullcontext()


def _save(
    original: Callable[Concatenate[keras.Model, object, Rest], Result],
    model: keras.Model,
    filepath: object,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> Result | None:
    def write(path: object) -> Result:
        with late_errors():
            return original(model, path, *args, **kwargs)

    strategy = getattr(model, "distribute_strategy", None)
    engine = engine_of(strategy or tf.distribute.get_strategy())
    if engine is None:
        return original(model, filepath, *args, **kwargs)
    if engine.num_processes == 1:
        result = write(filepath)
        watching.note_save(filepath)
        return result
    # Checked on all processes, so that all raise the error, not only the one that reads the accumulators.
    check_known(accumulators_of(getattr(model, "optimizer", None)))
    saved = write_on_rank_0(engine, filepath, variables_of(model), write)
    watching.note_save(filepath)
    return saved


def _save_legacy(
    original: Callable[Concatenate[keras.Model, object, Rest], Result],
    model: keras.Model,
    filepath: object,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> Result | None:
    def save(model: keras.Model, path: object, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        return original(plain_form(model), path, *args, **kwargs)

    return _save(save, model, filepath, *args, **kwargs)


def _get_h5_file(
    original: Callable[[saving_lib.H5IOStore, object, str | None], Result],
    store: saving_lib.H5IOStore,
    path_or_io: object,
    mode: str | None = None,
) -> Result:
    """Opens a file of weights such that a full disk raises an error in Keras' caller instead of crashing HDF5."""
    mode = mode or store.mode
    if store.archive or mode == "r" or not isinstance(path_or_io, (str, pathlib.Path)):
        return original(store, path_or_io, mode)
    return original(store, open_late(path_or_io, mode) or path_or_io, mode)


def export(model: keras.Model, filepath: object, *args: Any, **kwargs: Any) -> Any:
    """Exports a model as ``keras.Model.export`` does; of several processes rank 0 writes, and exports whole weights."""

    def write(model: keras.Model, path: object, /, *args: Any, **kwargs: Any) -> Any:
        # If other processes own some of the weights, no process can run the graph of the model.
        is_whole = all(owns_all(variable.value) for variable in model.variables)
        exported = model if is_whole else plain_form(model)
        # Some formats require a model that was called.
        exported._called = model._called
        return keras.Model.export(exported, path, *args, **kwargs)

    engine = _engine(model)
    if engine is not None and str(filepath).endswith(".xml"):
        # OpenVINO writes a second file of the same name beside it.
        return drive(engine, variables_of(model), lambda: write(model, filepath, *args, **kwargs))
    return _save(write, model, filepath, *args, **kwargs)


def _is_memory_sufficient(original: Callable[[keras.Model], bool], model: keras.Model) -> bool:
    """Returns False where a replica spans processes: Keras would then keep the file of the whole model in memory."""
    engine = _engine(model)
    return original(model) and (engine is None or not engine.parts.spans_processes)


def _load_weights(
    original: Callable[Concatenate[keras.Model, object, Rest], Result],
    model: keras.Model,
    filepath: object,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> Result:
    loading = current_loading()
    if loading is not None:
        # Reads no value, and waits for no process: another one may lack the file.
        loading.open(filepath)
        return original(model, filepath, *args, **kwargs)
    wait_until_written(_engine(model), filepath)
    with _reading(_engine(model)):
        return original(model, filepath, *args, **kwargs)


def _load_state(
    original: Callable[..., None],
    saveable: Any,
    weights_store: Any,
    assets_store: Any,
    inner_path: str,
    **kwargs: Any,
) -> None:
    """Notes how a layer that could not be loaded differs from the file, while the file is open."""
    original(saveable, weights_store, assets_store, inner_path, **kwargs)
    loading, errors = current_loading(), kwargs.get("error_msgs")
    if loading is not None and loading.collects and errors and id(saveable) in errors:
        loading.compare(saveable, weights_store.get(inner_path))


def _raise_loading_failure(original: Callable[..., None], errors: Mapping[int, Any], warn_only: bool = False) -> None:
    loading = current_loading()
    if loading is None or not loading.collects or warn_only:
        original(errors, warn_only)
    else:
        loading.fail(saveable for saveable, _ in errors.values())


def _load_model(
    original: Callable[Concatenate[object, Rest], Result], filepath: object, *args: Rest.args, **kwargs: Rest.kwargs
) -> Result:
    wait_until_written(_engine(None), filepath)
    with _reading(_engine(None)):
        return original(filepath, *args, **kwargs)


def _load_layer(
    original: Callable[Concatenate[keras.Layer, object, Rest], None],
    layer: keras.Layer,
    filepath: object,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> None:
    wait_until_written(_engine(None), filepath)
    original(layer, filepath, *args, **kwargs)
