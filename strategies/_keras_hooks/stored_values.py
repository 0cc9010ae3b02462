"""Values in files of weights, read and written range by range where a replica spans processes.

Keras reads and writes one weight after the other, each as an array. A process should not read the array of a weight
that only others own, nor hold the whole array in memory beside a weight that it owns.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from strategies._keras_hooks.addresses import CommonVariable, saving_lib
from strategies._keras_hooks.wrapping import wrap
from strategies.replica.deferred import UnknownValue, component_of, is_remote
from strategies.replica.driving import current_driver
from strategies.replica.fetching import take
from strategies.replica.owners import spans_processes
from strategies.replica.splitting import SplitWeight, sharded_weight
from strategies.replica.stored_array import StoredArray
from strategies.saving import ranges
from strategies.saving.unread_files import current_loading
from strategies.steps import state_writes

_reading: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_reads_in_ranges", default=False)


def install() -> None:
    """Wraps the store of a file, and the assignment of a variable."""
    wrap(saving_lib.H5IOStore, "__getitem__", _read, in_step=False)
    wrap(saving_lib.H5IOStore, "__setitem__", _write, in_step=False)
    wrap(CommonVariable, "assign", _assign)


@contextlib.contextmanager
def reading_in_ranges() -> Iterator[None]:
    """Context manager: each process reads from files only the weights that it owns."""
    token = _reading.set(True)
    try:
        yield
    finally:
        _reading.reset(token)


def _read(original: Callable[..., Any], store: Any, key: str) -> Any:
    loading = current_loading()
    if loading is not None and store.archive is None:
        return loading.array(saving_lib.safe_get_h5_dataset(store._h5_entry_group, key))
    if not _reading.get() and current_driver() is None:
        return original(store, key)
    dataset = saving_lib.safe_get_h5_dataset(store._h5_entry_group, key)
    # Keras writes bfloat16, which h5py does not know, as bytes.
    return original(store, key) if "dtype" in dataset.attrs else StoredArray(dataset)


def _write(original: Callable[..., None], store: Any, key: str, value: Any) -> None:
    if current_driver() is None or not _is_placed(value) or not value.shape or value.dtype == "bfloat16":
        original(store, key, value)
        return
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    # Like h5py with an array: the dataset gets its name only after it is written.
    dataset = store._h5_entry_group.create_dataset(None, tuple(value.shape), value.dtype)
    ranges.write(dataset, value)
    store._h5_entry_group[key] = dataset


def _is_placed(value: Any) -> bool:
    return isinstance(value, SplitWeight) or (isinstance(value, keras.Variable) and spans_processes(value))


def _assign(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    if isinstance(value, UnknownValue):
        return value
    if not isinstance(value, StoredArray):
        state_writes.check_in_scope(variable.path, variable._value)
        return original(variable, value)
    loading = current_loading()
    if loading is not None and loading.assign(variable, value):
        return value
    if not spans_processes(variable) or tuple(value.shape) != tuple(variable.shape):
        return original(variable, np.asarray(value))
    driver = current_driver()
    if sharded_weight(variable) is not None:
        variable.value.assign(value)
    elif not is_remote(variable):
        take(variable, value)
    elif driver is not None:
        driver.assign(component_of(variable), value)
    return value
