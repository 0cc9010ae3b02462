"""Parts of a program that were made outside of the strategy's scope: errors that name the part, and warnings of writes.

Models, optimizers and metrics are refused. A program's step that writes a ``tf.Variable`` of one device is warned of:
replicas have no components of such a variable, and write it one after the other. `stored_values` checks variables of
Keras where they are assigned, by path; TensorFlow's own are only seen where TensorFlow writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import BaseResourceVariable, DistributedVariable, ResourceVariable
from strategies.batches import shares
from strategies.batches.program_lines import is_called_by_program
from strategies.steps import state_writes


def install() -> None:
    """Wraps writes of TensorFlow's variables: scatters, and writes that return the variable, end in `_lazy_read`."""
    wrap(BaseResourceVariable, "_lazy_read", _write)
    for name in ("assign", "assign_add", "assign_sub"):
        wrap(ResourceVariable, name, _write)


def check_part(strategy: tf.distribute.Strategy, kind: str, part: object) -> None:
    """Refuses a model, an optimizer or a metric that has variables of one device only.

    Args:
        strategy: the strategy under which it is used.
        kind: the kind of `part`, in words.
        part: a model, an optimizer or a metric; any other object is accepted.

    Raises:
        ValueError: it has such variables; the error names the model or layer in it that was made outside.
    """
    if not isinstance(part, (keras.Model, keras.Optimizer, keras.Metric)):
        return
    found = [variable for variable in part.variables if _is_of_one_device(variable, strategy)]
    if found:
        raise ValueError(_message(kind, part, found, strategy))


def other_strategy_error(model: keras.Model, strategy: tf.distribute.Strategy) -> str:
    """Returns the error message about a model that was made under another strategy, or under none."""
    return _not_made_under(f"model {model.name!r}", strategy)


def _is_of_one_device(variable: Any, strategy: tf.distribute.Strategy) -> bool:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return not (isinstance(value, DistributedVariable) and value.distribute_strategy is strategy)


def _message(kind: str, part: Any, found: Collection[Any], strategy: tf.distribute.Strategy) -> str:
    ids = {id(variable) for variable in found}
    first = next(iter(found))
    received = f" Received a variable of one device only: {getattr(first, 'path', first.name)!r}."
    # `other_strategy_error` has already refused a model that was itself made under another strategy, or none.
    inner = part._flatten_layers(include_self=False) if isinstance(part, keras.Model) else []
    for layer in inner:
        own = layer.variables
        if own and all(id(variable) in ids for variable in own) and not _ways(layer):
            what = "model" if isinstance(layer, keras.Model) else "layer"
            return _not_made_under(f"{what} {layer.name!r} in the {kind} {part.name!r}", strategy) + received
    for layer in inner:
        held = [*layer._trainable_variables, *layer._non_trainable_variables]
        if any(id(variable) in ids for variable in held):
            way = _ways(layer) or "what added them"
            return (
                f"The layer {layer.name!r} in the {kind} {part.name!r} was given variables outside of the scope of "
                f"this {type(strategy).__name__}, which would not be kept alike on its {strategy.num_replicas_in_sync} "
                f"replicas. Call {way} inside `with strategy.scope():`.{received}"
            )
    return _not_made_under(f"{kind} {part.name!r}", strategy) + received


def _ways(layer: Any) -> str:
    """Returns the methods that were called, among those that replace or add variables of a layer."""
    was_called = {
        "`quantize`": getattr(layer, "quantization_mode", None) is not None,
        "`enable_lora`": getattr(layer, "lora_enabled", False),
    }
    return " and ".join(name for name, was in was_called.items() if was)


def _not_made_under(what: str, strategy: tf.distribute.Strategy) -> str:
    return (
        f"The {what} was not made under this {type(strategy).__name__}, so its variables would not be kept alike on "
        f"its {strategy.num_replicas_in_sync} replicas. Make it inside `with strategy.scope():`, with the same "
        "strategy object as the rest of the model."
    )


def _write(original: Callable[..., Any], variable: tf.Variable, *args: Any, **kwargs: Any) -> Any:
    # In TensorFlow, a component or its handle refers to the distributed variable that it belongs to.
    is_component = hasattr(variable, "_distributed_container") or hasattr(variable.handle, "_distributed_container")
    if (
        not is_component
        and shares.current() is not None
        and is_called_by_program("tensorflow", "functools", "contextlib")
    ):
        state_writes.check_in_scope(variable.name.partition(":")[0], variable)
    return original(variable, *args, **kwargs)
