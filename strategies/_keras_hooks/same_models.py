"""Models whose replicas span processes: before the first step, all processes have the same one, or are told so.

Processes that hold parts of different models would wait for each other, or compute with weights that do not belong
together. What a model is, is compared by a digest; only where it differs does each process tell the others in words.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.wrapping import engine_of
from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.texts import gather_texts
from strategies.engine.variables import MetricVariable
from strategies.replica.deferred import component_of, is_remote
from strategies.replica.holders import place_of

# Models that were compared: since they were compiled, and ever.
_compared: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_known: weakref.WeakSet[keras.Model] = weakref.WeakSet()

_NOT_HELD = -1


def forget(model: keras.Model) -> None:
    """Has a model compared again: it is compiled anew."""
    _compared.discard(model)


def compare(model: keras.Model) -> None:
    """Compares a model between processes, once after it was compiled; nothing where no replica spans processes.

    All processes call it. A model that is not built yet is left for a later call.

    Raises:
        ValueError: on all processes, if they have different models, or other values of a variable that several hold.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is None or not engine.parts.spans_processes or model in _compared or not model.built:
        return
    job = engine.parts.groups.job
    if job is None:
        return
    lines = list(_description(model))
    digest = np.frombuffer(hashlib.sha1("\n".join(lines).encode()).digest()[:16], np.int64)
    if len(np.unique(_gathered(job, digest), axis=0)) > 1:
        raise ValueError(_first_difference(gather_texts("\n".join(lines), job)))
    _compare_values(model, job)
    _compared.add(model)
    _known.add(model)


def _description(model: keras.Model) -> Iterator[str]:
    """Yields what has to be the same: lines that mean something to the user, those that differ most likely first."""
    for layer in model._flatten_layers():
        yield f"layer {_plain(layer.name)} of class {type(layer).__name__}"
        starts = getattr(getattr(layer, "partition", None), "starts", None)
        if starts is not None:
            chosen = [getattr(layer, name, None) for name in ("num_microbatches", "_schedule_name")]
            yield f"pipeline with stages that begin at {starts}, micro-batches and schedule {chosen}"
    for variable in model.variables:
        place = {axis: sorted(at) for axis, at in sorted(place_of(variable).items())}
        yield f"variable {_plain(variable.path)} {tuple(variable.shape)} {variable.dtype} at {place}"
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        config = optimizer.get_config()
        yield f"optimizer {type(optimizer).__name__} {_stable(config)}"
    if model._compile_loss is not None:
        yield f"loss {_names(model._compile_loss._user_loss)}"
    if model._compile_metrics is not None:
        yield f"metrics {_names([model._compile_metrics._user_metrics, model._compile_metrics._user_weighted_metrics])}"


def _plain(path: str) -> str:
    # Keras numbers the names of layers: a process that has made other models before numbers otherwise.
    return re.sub(r"_\d+(?=/|$)", "", path)


def _stable(config: Any) -> str:
    # Of functions and objects without a representation of their own, Python writes the address.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(config))


def _names(given: Any) -> list[str]:
    names = [getattr(each, "name", getattr(each, "__name__", _stable(each))) for each in keras.tree.flatten(given)]
    # Without the numbers of Keras, which count what else a process has made.
    return [_plain(str(name)) for name in names]


def _gathered(job: ProcessGroup, row: np.ndarray) -> np.ndarray:
    return np.asarray(job.gather(tf.constant(row[np.newaxis])))


def _first_difference(texts: Sequence[str]) -> str:
    rows = itertools.zip_longest(*(text.split("\n") for text in texts), fillvalue="nothing")
    row = next(row for row in rows if len(set(row)) > 1)
    received = "; ".join(f"rank {rank}: {line}" for rank, line in enumerate(row))
    return (
        "The processes have made different models. All of them have to run the same program: the same layers, in the "
        "same order, the same partition, optimizer, loss and metrics, whatever their rank. Received, where they differ "
        f"first: {received}."
    )


def _compare_values(model: keras.Model, job: ProcessGroup) -> None:
    """Refuses other values of a variable on processes that all hold it: nothing would make them agree again."""
    variables = [v for v in model.variables if not isinstance(v._value, MetricVariable)]
    if model in _known:
        # States of seeds advance where layers run.
        variables = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    sums = [_NOT_HELD if is_remote(v) else _checksum(v) for v in variables]
    if not sums:
        return
    for variable, held in zip(variables, _gathered(job, np.array(sums, np.int64)).T, strict=True):
        if len(set(held.tolist()) - {_NOT_HELD}) > 1:
            first = next(each for each in held.tolist() if each != _NOT_HELD)
            others = [rank for rank, each in enumerate(held.tolist()) if each not in (first, _NOT_HELD)]
            raise ValueError(
                f"The processes hold other values of {variable.path!r}, one of {len(variables)} variables of the model "
                f"{model.name!r}. Call keras.utils.set_random_seed with the same number on all ranks before the model "
                "is made, and set or load weights on all ranks alike. Received: values on ranks "
                f"{', '.join(map(str, others))} that differ from those of rank {held.tolist().index(first)}."
            )


def _checksum(variable: Any) -> int:
    # Not `numpy()`, which copies.
    value = np.ascontiguousarray(tf.convert_to_tensor(component_of(variable)))
    return zlib.crc32(value.reshape(-1).view(np.uint8).data)
