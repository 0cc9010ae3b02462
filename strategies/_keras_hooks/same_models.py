"""Compares models between processes before the first step: a difference is an error on all processes.

Processes that train different models would compute with weights that do not belong together, or wait for each other.
Lines of text describe a model and how it was compiled (`comparing`); then values of weights are compared.
"""

from __future__ import annotations

import re
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.comparing import compare as compare_lines
from strategies.collectives.descriptions import carrying
from strategies.collectives.process_group import ProcessGroup
from strategies.engine.engine import Engine, engine_of_processes
from strategies.engine.metric_variables import MetricVariable
from strategies.replica.deferred import component_of, is_remote
from strategies.replica.owners import coordinates_of
from strategies.sharding.variables import ShardedVariable

# `_compared`: models that were compared since their last `compile`. `_known`: models that were ever compared.
_compared: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_known: weakref.WeakSet[keras.Model] = weakref.WeakSet()

_NOT_OWNED = -1


def forget(model: keras.Model) -> None:
    """Makes the next :func:`compare` compare the model again, because it was recompiled."""
    _compared.discard(model)


def compare(model: keras.Model) -> None:
    """Compares a model between processes, once after each `compile`.

    All processes call it. A model that is not built yet is compared at a later call.

    Raises:
        ValueError: on all processes, if they have different models, or different values of a variable that several own.
    """
    engine = engine_of_processes(model.distribute_strategy)
    if engine is None or model in _compared or not model.built:
        return
    compare_lines(engine, list(_description(model)))
    _compare_values(model, engine, engine.process_group)
    _compared.add(model)
    _known.add(model)


def _description(model: keras.Model) -> Iterator[str]:
    """Yields lines, meaningful to the user, that must be equal on all processes, those most likely to differ first."""
    for layer in model._flatten_layers():
        name = _plain(layer.name)
        yield f"layer {name} of class {type(layer).__name__}"
        for setting, value in _settings(layer).items():
            yield f"layer {name}({setting}={value})"
        starts = getattr(getattr(layer, "partition", None), "starts", None)
        if starts is not None:
            chosen = [getattr(layer, name, None) for name in ("num_microbatches", "_schedule_name")]
            yield f"pipeline with stages that begin at {starts}, micro-batches and schedule {chosen}"
    for variable in model.variables:
        coordinates = {axis: sorted(at) for axis, at in sorted(coordinates_of(variable).items())}
        yield f"variable {_plain(variable.path)} {tuple(variable.shape)} {variable.dtype} at {coordinates}"
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        config = optimizer.get_config()
        for name, value in config.items():
            if name != "name":
                yield f"optimizer {type(optimizer).__name__}({name}={_stable(value)})"
    if model._compile_loss is not None:
        yield f"loss {_names(model._compile_loss._user_loss)}"
    if model._compile_metrics is not None:
        yield f"metrics {_names([model._compile_metrics._user_metrics, model._compile_metrics._user_weighted_metrics])}"

    for name in ("steps_per_execution", "run_eagerly", "jit_compile"):
        yield f"compile({name}={getattr(model, name, None)})"


def _settings(layer: keras.Layer) -> dict[str, Any]:
    """Returns the configuration of a layer; of a model only dtype and `trainable`: its layers are described by line."""
    try:
        config = {} if isinstance(layer, keras.Model) else layer.get_config()
    except Exception:
        # `get_config` fails in some layers of users and of well-known packages.
        config = {}
    return {name: _plain(_stable(value)) for name, value in config.items() if name != "name"} | {
        "dtype": layer.dtype_policy.name,
        "trainable": layer.trainable,
    }


def _plain(path: str) -> str:
    # Keras numbers the names of layers: a process that has made other models before has other numbers.
    return re.sub(r"_\d+(?=/|'|$)", "", path)


def _stable(config: Any) -> str:
    # The default `repr` of functions and objects contains their address.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(config))


def _names(given: Any) -> list[str]:
    names = [getattr(each, "name", getattr(each, "__name__", _stable(each))) for each in keras.tree.flatten(given)]
    # Without Keras' numbers, which count the other objects that a process has made.
    return [_plain(str(name)) for name in names]


def _compare_values(model: keras.Model, engine: Engine, job: ProcessGroup) -> None:
    """Refuses different values of a variable on its owner ranks: nothing would make them agree again."""
    variables = _alike(model)
    if model in _known or not engine.parts.spans_processes:
        # Integer seed states advance where layers run, so they may differ.
        variables = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    refuse_other_values(variables, job, f"{len(variables)} variables of the model {model.name!r}")


def _alike(model: keras.Model) -> list[Any]:
    """Returns the model's variables that have to be equal on all of their owner ranks."""
    return [v for v in model.variables if not isinstance(v._value, (MetricVariable, ShardedVariable))]


def compare_weights(model: keras.Model, when: str = "") -> None:
    """Compares the values of a model's weights between processes. All processes call it.

    Args:
        model: a model under a strategy of this package; nothing happens under another.
        when: the time to name in the error, as in "after step 3".

    Raises:
        ValueError: on all processes, if values differ.
    """
    engine = engine_of_processes(model.distribute_strategy)
    if engine is None:
        return
    what = f"the weights of the model {model.name!r}{', ' if when else ''}{when}"
    refuse_other_values(replicated_weights(model), engine.process_group, what)


def replicated_weights(model: keras.Model) -> list[Any]:
    """Returns the model's floating-point weights that have to be equal on all of their owner ranks."""
    weights = {id(weight) for weight in model.weights}
    return [v for v in _alike(model) if id(v) in weights and tf.as_dtype(v.dtype).is_floating]


def refuse_other_values(variables: Sequence[Any], job: ProcessGroup, what: str) -> None:
    """Raises an error on all processes if the values of a variable differ between its owner ranks."""
    gathered_with_checksums(variables, job, what)


def gathered_with_checksums(variables: Sequence[Any], job: ProcessGroup, what: str, *numbers: int) -> list[list[int]]:
    """Compares checksums of variables and returns every rank's `numbers`, which are sent in the same message.

    Raises:
        ValueError: on all processes, if the values of a variable differ between its owner ranks.
    """
    sums = [_NOT_OWNED if is_remote(v) else _checksum(v) for v in variables]
    row = np.array([[*numbers, *sums]], np.int64)
    if not row.size:
        return [[] for _ in range(job.num_processes)]
    with carrying("checksums of weights"):
        rows = np.asarray(job.gather(tf.constant(row), equal_sizes=True))
    by_rank = rows[:, len(numbers) :]
    for variable, checksums in zip(variables, by_rank.T, strict=True):
        if len(set(checksums.tolist()) - {_NOT_OWNED}) > 1:
            first = next(each for each in checksums.tolist() if each != _NOT_OWNED)
            others = [rank for rank, each in enumerate(checksums.tolist()) if each not in (first, _NOT_OWNED)]
            raise ValueError(
                f"The processes have different values of {variable.path!r}, one of {what}. Call "
                "keras.utils.set_random_seed with the same number on all ranks before the model is made, and set or "
                f"load weights on all ranks alike. Received: values on ranks {', '.join(map(str, others))} that "
                f"differ from those of rank {checksums.tolist().index(first)}."
            )
    numbers_by_rank: list[list[int]] = rows[:, : len(numbers)].tolist()
    return numbers_by_rank


def _checksum(variable: Any) -> int:
    # Not `numpy()`, which copies. Summing words is as fast as reading memory.
    data = np.ascontiguousarray(tf.convert_to_tensor(component_of(variable))).reshape(-1).view(np.uint8)
    whole = data.size // 8 * 8
    words = int(np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64))
    return (words + zlib.crc32(data[whole:].data)) % 2**62
