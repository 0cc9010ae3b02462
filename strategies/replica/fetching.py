"""The value of a variable that some processes hold, on all of them: a message for each slice of it.

All processes call these, with the same variables in the same order. No process holds more of it than the one value that
it asked for, and of one that is written to a file not even that: what is sent at a time is small.

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
from strategies.replica.flat_ranges import ranges
from strategies.replica.holders import holders_of, job_of, spans_processes
from strategies.replica.stored_array import StoredArray


def fetched(variable: Any) -> np.ndarray:
    """Returns the value of a variable of Keras or TensorFlow; of one that only some processes hold, collectively.

    Where this process drives the others, and they serve it, it alone calls this.
    """
    if not spans_processes(variable):
        return np.asarray(variable.numpy())
    ranks = holders_of(variable)
    if not ranks or current_driver() is not None:
        return np.asarray(local_value(variable))
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    return together(shape, dtype, slices(job_of(variable), ranks[0], shape, dtype, lambda: local_value(variable)))


def give_to_all(variable: Any, job: ProcessGroup) -> None:
    """Sets a Keras variable, on all processes that hold it, to what rank 0 has, which holds it, too."""
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    mine = local_value(variable) if job.rank == 0 else None
    sent = slices(job, 0, shape, dtype, lambda: mine)
    if job.rank and not is_remote(variable):
        take(variable, sent)
        return
    drop(sent)
    if getattr(component_of(variable), "draw", None) is not None:
        # Not drawn again: the others have this draw.
        variable.assign(mine)


def local_value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable that this process holds.

    One that all processes hold and that is still to be drawn stays so: its model may be there to be copied only.
    """
    component = component_of(variable)
    drawn = holders_of(variable) or getattr(component, "draw", None) is None
    return tf.cast(tf.convert_to_tensor(variable) if drawn else peek(variable), variable.dtype)


def slices(
    job: ProcessGroup, root: int, shape: tf.TensorShape, dtype: tf.DType, value: Callable[[], Any]
) -> Iterator[tf.Tensor]:
    """Yields a value that process `root` has, in flat slices, on all processes; all of them take all slices.

    Args:
        job: all processes.
        root: a rank.
        shape: of the value, known on all processes.
        dtype: of the value.
        value: returns it, a tensor or a `StoredArray`; called on process `root` only.
    """
    mine = value() if job.rank == root else None
    error: Exception | None = None
    for begin, end in ranges(int(shape.num_elements() or 0), dtype.size):
        part = tf.zeros([end - begin], dtype)
        if mine is not None and error is None:
            try:
                part = _range(mine, begin, end, dtype)
            except Exception as caught:
                # The others take part in all slices, whatever becomes of one.
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
    """Takes part in sending slices that others want."""
    for _ in parts:
        pass


def together(shape: tf.TensorShape, dtype: tf.DType, parts: Iterable[tf.Tensor]) -> np.ndarray:
    """Returns a value of this shape that comes in flat slices."""
    value = np.empty(int(shape.num_elements() or 0), dtype.as_numpy_dtype)
    begin = 0
    for part in parts:
        array = part.numpy()
        value[begin : begin + len(array)] = array
        begin += len(array)
    return value.reshape(shape)


def assembled(shape: tf.TensorShape, dtype: tf.DType, parts: Iterable[tf.Tensor]) -> tf.Tensor:
    """Returns a value of this shape that comes in flat slices, as a tensor; slices of equal sizes without a copy."""
    count = int(shape.num_elements() or 0)
    sizes = [end - begin for begin, end in ranges(count, dtype.size)]
    with tf.device("CPU:0"):
        if len(sizes) < 2 or sizes[0] != sizes[-1]:
            return tf.reshape(tf.concat([tf.zeros([0], dtype), *parts], 0), shape)
        whole = tf.raw_ops.Empty(shape=[len(sizes), sizes[0]], dtype=dtype, init=False)
        for index, part in enumerate(parts):
            # The memory of `whole`, which nobody else has seen.
            whole = tf.raw_ops.InplaceUpdate(x=whole, i=[index], v=part[tf.newaxis])
        return tf.reshape(whole, shape)


def take(variable: Any, value: Iterable[tf.Tensor] | StoredArray) -> None:
    """Sets a Keras variable that this process holds; its old value is dropped before.

    Args:
        variable: has one component.
        value: in flat slices, or what they are read from: not from the variable.
    """
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    component = component_of(variable)
    parts = _ranges(value, dtype) if isinstance(value, StoredArray) else value
    if not isinstance(component, DeferredVariable) or component.shape != shape:
        # Of one in shards, its own is cut from it.
        variable.assign(assembled(shape, dtype, parts))
        return
    # Should a slice fail to come, it is zeros.
    component.forget(functools.partial(tf.zeros, shape, dtype))
    # Not by the distributed variable, which would copy the value.
    component.assign(assembled(shape, dtype, parts))


def _ranges(value: Any, dtype: tf.DType) -> Iterator[tf.Tensor]:
    for begin, end in ranges(int(np.prod(value.shape)), dtype.size):
        yield _range(value, begin, end, dtype)
