"""The value of a variable that some processes hold, on all of them: a message for each slice of it.

All processes call these, with the same variables in the same order. No process holds more of it than the one value that
it asked for: what is sent at a time is small.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup
from strategies.replica.deferred import component_of, is_remote, peek
from strategies.replica.driving import current_driver
from strategies.replica.holders import holders_of, job_of, spans_processes

#: What is sent at a time: long enough for latencies not to matter, short beside a weight that is worth splitting.
_SLICE_BYTES = 8 * 2**20


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
    sent = slices(job, 0, shape, dtype, lambda: local_value(variable))
    if is_remote(variable):
        drop(sent)
    else:
        variable.assign(together(shape, dtype, sent))


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
        value: returns it; called on process `root` only.
    """
    count = int(shape.num_elements() or 0)
    mine = tf.reshape(value(), [-1]) if job.rank == root else None
    step = max(1, _SLICE_BYTES // dtype.size)
    for begin in range(0, count, step):
        size = min(step, count - begin)
        yield job.broadcast(tf.zeros([size], dtype) if mine is None else mine[begin : begin + size], root)


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
