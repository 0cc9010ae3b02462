"""Copies the value of one weight to another, without drawing a value that is still deferred.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.deferred import StoredDraw, draw_by, draw_of, is_remote, peek, stored_array_of
from strategies.replica.fetching import assembled, local_value, slices
from strategies.replica.owners import job_of, owners_of, spans_processes
from strategies.replica.splitting import SplitWeight, value_of
from strategies.replica.whole_of_slices import WholeOfSlices


def copy_value(source: Any, target: Any) -> None:
    """Sets a Keras variable or a split weight to the value of another one of the same shape. All processes call it.

    Where a replica spans processes, each process sets the parts of `target` that it owns. If neither weight has been
    drawn yet, the target takes the source's draw function, so that nothing is drawn before it is needed; so it is for a
    model that is made only for its shapes. A weight that was made outside of the strategy's scope may differ between
    processes: all of them take the value of rank 0, unless it is still in a file, from which each process reads its own
    parts.
    """
    source, target = _placed(source), _placed(target)
    parts = _shards(target)
    if not spans_processes(parts[0]) and _all_undrawn(source, target):
        for index, part in enumerate(parts):
            weight = target if isinstance(target, SplitWeight) else None
            draw_by(part, functools.partial(_part, functools.partial(value_of, source), weight, index))
    elif not spans_processes(parts[0]):
        target.assign(_undrawn_value(source))
    elif _cut_alike(source, target):
        for own, shard in zip(source.shards, target.shards, strict=True):
            copy_value(own, shard)
    elif not _is_local(source, parts):
        value = _from_others(source, parts[0])
        if not all(map(is_remote, parts)):
            target.assign(value)
    else:
        for index, part in enumerate(parts):
            if not is_remote(part):
                _take(source, target if isinstance(target, SplitWeight) else None, part, index)


def _undrawn_value(source: Any) -> Any:
    """Returns the value of a weight. One that is still deferred stays so: its model may exist only to be copied."""
    if isinstance(source, SplitWeight) or draw_of(source) is None:
        return value_of(source)
    stored = stored_array_of(source)
    return np.asarray(peek(source)) if stored is None else stored


def _placed(weight: Any) -> Any:
    """Returns a weight's sharded variable, which has its draw function, if a replica spans processes; else `weight`."""
    variable = weight.distributed() if isinstance(weight, WholeOfSlices) and weight.distributed is not None else None
    return variable if variable is not None and spans_processes(variable) else weight


def _shards(weight: Any) -> Sequence[Any]:
    return weight.shards if isinstance(weight, SplitWeight) else [weight]


def _cut_alike(source: Any, target: Any) -> bool:
    split = isinstance(source, SplitWeight) and isinstance(target, SplitWeight)
    return split and (source.dim, source.sizes) == (target.dim, target.sizes)


def _all_undrawn(*weights: Any) -> bool:
    return all(draw_of(shard) is not None for weight in weights for shard in _shards(weight))


def _is_local(source: Any, parts: Sequence[Any]) -> bool:
    """Returns True if every owner of one of the parts also has the source. The result is the same on all processes."""
    if isinstance(source, SplitWeight):
        return False
    if not spans_processes(source):
        return stored_array_of(source) is not None
    known = set(owners_of(source))
    return not known or all(known.issuperset(owners_of(part) or [-1]) for part in parts)


def _from_others(source: Any, part: Any) -> Any:
    if spans_processes(_shards(source)[0]):
        return value_of(source)
    shape, dtype = tf.TensorShape(source.shape), tf.as_dtype(source.dtype)
    return assembled(shape, dtype, slices(job_of(part), 0, shape, dtype, lambda: tf.constant(_undrawn_value(source))))


def _take(source: Any, weight: SplitWeight | None, part: Any, index: int) -> None:
    """Sets a part of the target from the source; this process owns both."""
    known, stored = draw_of(source), stored_array_of(source)
    if stored is not None:
        array = stored if weight is None else weight.part_of(stored, index)
        if draw_of(part) is None:
            part.assign(array)
        else:
            draw_by(part, StoredDraw(array))
    elif known is not None and draw_of(part) is not None:
        draw_by(part, functools.partial(_part, known, weight, index))
    else:
        part.assign(_part(functools.partial(local_value, source), weight, index))


def _part(value: Callable[[], Any], weight: SplitWeight | None, index: int) -> Any:
    with tf.device("CPU:0"):
        return value() if weight is None else weight.part_of(tf.convert_to_tensor(value()), index)
