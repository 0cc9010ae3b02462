"""Compares models, calls and batches between processes before the first step: a difference is an error on all of them.

Processes that train different models would compute with weights that do not belong together, or wait for each other. At
each call they exchange a digest of lines of text: about the model and its `compile`, if these have not been compared
since the last `compile`, and about the call's arguments. Values of weights are compared once after each `compile`, and
at the end of each epoch.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks import call_lines, model_lines
from strategies.batches import first_batch
from strategies.collectives.agreement import Agreement
from strategies.engine.engine import Engine, engine_of
from strategies.replica.deferred import component_of, is_remote
from strategies.saving.together import texts_of_job
from strategies.sharding.variables import ShardedVariable
from strategies.steps.metric_variables import MetricVariable
from strategies.topology.agreement import differences

# For each model, what was compared since its last `compile`; `_VALUES` stays.
_compared: weakref.WeakKeyDictionary[keras.Model, set[str]] = weakref.WeakKeyDictionary()
_MODEL, _COMPILE, _VALUES = "the model", "compile", "values at the first time"

_NOT_OWNED = -1
_WHAT = "descriptions of the model and its input"
_REMEDY = (
    "The processes run different programs. All of them have to make the same model, compile it alike and give it the "
    "same data, whatever their rank."
)


def compared(model: keras.Model) -> set[str]:
    """Returns the names of the comparisons since the model's last `compile`; the caller may add to them."""
    return _compared.setdefault(model, set())


def forget(model: keras.Model) -> None:
    """Causes the model to be compared again, because it was recompiled."""
    compared(model).intersection_update({_VALUES})


def compare_call(model: keras.Model, method: str, arguments: Mapping[str, Any]) -> None:
    """Compares the arguments of a call, and the model if that is due. All processes call it before each such call.

    Calls on one batch are compared the first time only, with their batch: later ones would cost an exchange per step.

    Args:
        model: the model.
        method: the name of its method.
        arguments: all arguments of the method, by name, with defaults.

    Raises:
        ValueError: on all processes, if they have different models, arguments, or batches of `*_on_batch` methods.
    """
    engine = engine_of(model.distribute_strategy)
    # The data of a validation are among the arguments of `fit`.
    is_validation = "_use_cached_eval_dataset" in arguments.get("kwargs", {})
    if engine is None or engine.agreement is None or is_validation:
        return
    on_batch = method.endswith("_on_batch")
    lines = []
    if not on_batch or method not in compared(model):
        call = engine.member.position.call or method
        lines = [*call_lines.describe_call(call, {**arguments, "steps_per_execution": model.steps_per_execution})]
    _compare(model, engine, engine.agreement, lines)
    if on_batch and lines:
        first_batch.compare([arguments.get(name) for name in call_lines.DATA], engine.agreement)
        compared(model).add(method)


def compare_built(model: keras.Model) -> None:
    """Compares a model that was not built yet at :func:`compare_call`. All processes call it."""
    engine = engine_of(model.distribute_strategy)
    if engine is not None and engine.agreement is not None:
        _compare(model, engine, engine.agreement, [])


def _compare(model: keras.Model, engine: Engine, agreement: Agreement, lines: Sequence[str]) -> None:
    known = compared(model)
    due = {_COMPILE, _MODEL} - known if model.built else {_COMPILE} - known
    if not due and not lines:
        return
    about_model = [*model_lines.describe_model(model)] if _MODEL in due else []
    about_compile = [*model_lines.describe_compile(model)] if _COMPILE in due else []
    agreement.compare(_WHAT, [*about_model, *about_compile, *lines], _remedy)
    if _MODEL in due:
        _compare_values(model, engine, agreement)
    known.update(due)


def _remedy(differing: Sequence[str]) -> str:
    return f"{_REMEDY} {first_batch.REMEDY}" if any(map(call_lines.is_about_rows, differing)) else _REMEDY


def _compare_values(model: keras.Model, engine: Engine, agreement: Agreement) -> None:
    """Refuses different values of a variable on its owner ranks: nothing would make them agree again."""
    variables = _alike(model)
    if _VALUES in compared(model) or not engine.parts.spans_processes:
        # Integer seed states advance where layers run, so they may differ.
        variables = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    gathered_with_checksums(variables, agreement, f"{len(variables)} variables of the model {model.name!r}")
    compared(model).add(_VALUES)


def _alike(model: keras.Model) -> list[Any]:
    """Returns the model's variables that have to be equal on all of their owner ranks."""
    return [v for v in model.variables if not isinstance(v._value, (MetricVariable, ShardedVariable))]


def compare_weights(model: keras.Model, when: str, last_equal: str = "") -> None:
    """Compares the values of a model's weights between replicas and between processes. All processes call it.

    Args:
        model: a model under a strategy of this package; nothing happens under another.
        when: the time to name in the error, as in "after step 3".
        last_equal: the time of the last comparison that found them equal.

    Raises:
        ValueError: on all processes, if values differ.
    """
    engine = engine_of(model.distribute_strategy)
    if engine is None:
        return
    what = f"the weights of the model {model.name!r}, {when}{'; they were equal ' if last_equal else ''}{last_equal}"
    weights = replicated_weights(model)
    texts = dict.fromkeys(filter(None, texts_of_job(model, _differing_replicas(weights))))
    if texts:
        raise ValueError(f"Replicas have different values of {'; '.join(texts)}: {what}.")
    if engine.agreement is not None:
        gathered_with_checksums(weights, engine.agreement, what)


def _differing_replicas(weights: Sequence[Any]) -> str:
    """Returns the first weight whose copies on this process' devices differ, with their checksums; "" if none do."""
    for weight in weights:
        value = weight._value
        copies = value.values if isinstance(value, tf.distribute.DistributedValues) else ()
        checksums = {copy.device.rpartition("/device:")[2]: _checksum(copy) for copy in copies if not is_remote(copy)}
        if len(set(checksums.values())) > 1:
            found = ", ".join(f"{checksum:x} on {device}" for device, checksum in checksums.items())
            return f"{weight.path!r} (checksums {found})"
    return ""


def replicated_weights(model: keras.Model) -> list[Any]:
    """Returns the model's floating-point weights that have to be equal on all of their owner ranks."""
    weights = {id(weight) for weight in model.weights}
    return [v for v in _alike(model) if id(v) in weights and tf.as_dtype(v.dtype).is_floating]


def gathered_with_checksums(
    variables: Sequence[Any], agreement: Agreement, what: str, *numbers: int
) -> list[list[int]]:
    """Compares checksums of variables and returns every rank's `numbers`, which are sent in the same message.

    Raises:
        ValueError: on all processes, if the values of a variable differ between its owner ranks.
    """
    own = [*numbers, *(_NOT_OWNED if is_remote(v) else _checksum(v) for v in variables)]
    if not own:
        return [[] for _ in range(agreement.job.num_processes)]
    rows = agreement.gathered("checksums of weights", *own)
    checksums_by_variable = zip(*(row[len(numbers) :] for row in rows), strict=True)
    for variable, checksums in zip(variables, checksums_by_variable, strict=True):
        if len({*checksums} - {_NOT_OWNED}) > 1:
            owned = [[] if each == _NOT_OWNED else [f"values with checksum {each:x}"] for each in checksums]
            raise ValueError(
                f"The processes have different values of {variable.path!r}, one of {what}. Call "
                "keras.utils.set_random_seed with the same number on all ranks before the model is made, and set or "
                f"load weights on all ranks alike. {differences(owned)}"
            )
    return [row[: len(numbers)] for row in rows]


def _checksum(variable: Any) -> int:
    # Not `numpy()`, which copies. Summing words is as fast as reading memory.
    data = np.ascontiguousarray(tf.convert_to_tensor(component_of(variable))).reshape(-1).view(np.uint8)
    whole = data.size // 8 * 8
    words = int(np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64))
    return (words + zlib.crc32(data[whole:].data)) % 2**62
