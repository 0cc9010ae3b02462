"""Sends the value of a variable that only some processes own to all processes, in one message for each slice.

All processes call these functions, with the same variables in the same order. A process holds at most the one value
that it requested; while a value is written to a file, it holds one small slice at a time.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.replica.deferred import DeferredVariable, component_of, is_remote, peek
from strategies.replica.driving import current_driver
from strategies.replica.owners import job_of, owners_of, spans_processes
from strategies.replica.stored_array import StoredArray, ranges


def fetched(variable: Any) -> np.ndarray:
    """Returns the value of a Keras or TensorFlow variable. It is a collective if only some processes own the variable.

    If this process drives the others, it alone calls this, and the others serve its request.
    """
    if not spans_processes(variable):
        return np.asarray(variable.numpy())
    ranks = owners_of(variable)
    if not ranks or current_driver() is not None:
        return np.asarray(local_value(variable))
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    return together(shape, dtype, slices(job_of(variable), ranks[0], shape, dtype, lambda: local_value(variable)))


def give_to_all(variable: Any, job: ProcessGroup) -> None:
    """Sets a Keras variable, on all processes that own it, to the value of rank 0, which is one of them."""
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    mine = local_value(variable) if job.rank == 0 else None
    sent = slices(job, 0, shape, dtype, lambda: mine)
    if job.rank and not is_remote(variable):
        take(variable, sent)
        return
    drop(sent)
    if getattr(component_of(variable), "draw", None) is not None:
        # Sets the value that the others have received, so that rank 0 does not draw it again.
        variable.assign(mine)


def local_value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable that this process owns.

    A deferred variable that all processes own stays deferred: its model may exist only to be copied.
    """
    component = component_of(variable)
    drawn = owners_of(variable) or getattr(component, "draw", None) is None
    return tf.cast(tf.convert_to_tensor(variable) if drawn else peek(variable), variable.dtype)


def slices(
    job: ProcessGroup, root: int, shape: tf.TensorShape, dtype: tf.DType, value: Callable[[], Any]
) -> Iterator[tf.Tensor]:
    """Yields the value of process `root` in flat slices, on all processes; each process must take all slices.

    Args:
        job: the process group of all processes.
        root: a rank.
        shape: the shape of the value, known on all processes.
        dtype: the dtype of the value.
        value: returns the value, a tensor or a `StoredArray`; called on process `root` only.
    """
    mine = value() if job.rank == root else None
    error: Exception | None = None
    for begin, end in ranges(int(shape.num_elements() or 0), dtype.size):
        part = tf.zeros([end - begin], dtype)
        if mine is not None and error is None:
            try:
                part = _range(mine, begin, end, dtype)
            except Exception as caught:
                # The other processes take part in all slices, so the error is raised after the last one.
                error = caught
        yield job.broadcast(part, root)
    if error is not None:
        raise error


def local_slices(variable: Any) -> Generator[tf.Tensor, None, None]:
    """Yields the value of a variable that this process can read by itself, in flat slices."""
    driver, dtype = current_driver(), tf.as_dtype(variable.dtype)
    if driver is not None and is_remote(variable):
        yield from driver.slices(component_of(variable))
        return
    yield from _ranges(local_value(variable), dtype)


def _range(value: Any, begin: int, end: int, dtype: tf.DType) -> tf.Tensor:
    if isinstance(value, StoredArray):
        return tf.cast(value.flat(begin, end), dtype)
    return tf.cast(tf.reshape(value, [-1])[begin:end], dtype)


def drop(parts: Iterable[tf.Tensor]) -> None:
    """Takes part in sending all slices, which is a collective, and drops them."""
    for _ in parts:
        pass


def together(shape: tf.TensorShape, dtype: tf.DType, parts: Iterable[tf.Tensor]) -> np.ndarray:
    """Returns the array of this shape that flat slices make up."""
    value = np.empty(int(shape.num_elements() or 0), dtype.as_numpy_dtype)
    begin = 0
    for part in parts:
        array = part.numpy()
        value[begin : begin + len(array)] = array
        begin += len(array)
    return value.reshape(shape)


def assembled(shape: tf.TensorShape, dtype: tf.DType, parts: Iterable[tf.Tensor]) -> tf.Tensor:
    """Returns the tensor of this shape that flat slices make up. Slices of equal sizes are joined without a copy."""
    count = int(shape.num_elements() or 0)
    sizes = [end - begin for begin, end in ranges(count, dtype.size)]
    with tf.device("CPU:0"):
        if len(sizes) < 2 or sizes[0] != sizes[-1]:
            return tf.reshape(tf.concat([tf.zeros([0], dtype), *parts], 0), shape)
        whole = tf.raw_ops.Empty(shape=[len(sizes), sizes[0]], dtype=dtype, init=False)
        for index, part in enumerate(parts):
            # In-place updates are safe here: nothing else refers to the memory of `whole`.
            whole = tf.raw_ops.InplaceUpdate(x=whole, i=[index], v=part[tf.newaxis])
        return tf.reshape(whole, shape)


def take(variable: Any, value: Iterable[tf.Tensor] | StoredArray) -> None:
    """Sets a Keras variable that this process owns. The old value of a deferred variable is freed first.

    Args:
        variable: a variable with one component.
        value: flat slices of the value, or the array to read them from; they must not be read from the variable itself.
    """
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    component = component_of(variable)
    parts = _ranges(value, dtype) if isinstance(value, StoredArray) else value
    if not isinstance(component, DeferredVariable) or component.shape != shape:
        # A sharded variable cuts the local shard from the whole value.
        variable.assign(assembled(shape, dtype, parts))
        return
    # If a slice does not arrive, the variable reads as zeros.
    component.forget(functools.partial(tf.zeros, shape, dtype))
    # Assigns the component, since the distributed variable would copy the value.
    component.assign(assembled(shape, dtype, parts))


def _ranges(value: Any, dtype: tf.DType) -> Iterator[tf.Tensor]:
    for begin, end in ranges(int(np.prod(value.shape)), dtype.size):
        yield _range(value, begin, end, dtype)
