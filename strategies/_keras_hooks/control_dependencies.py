"""Finds the resources of the ops of a step, as TensorFlow does, in less time.

After each trace, TensorFlow looks for the resources that each op reads and writes, to let writes and reads follow each
other. It asks each op for an attribute that nearly none has, which raises and catches an exception: 20,000 of them for
a small GPT on eight devices. In steps of our models, ops without a resource and without a dataset among their inputs
are not asked. Most cannot have one, such as those of arithmetic: their inputs are not even looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import auto_control_deps, op_definitions
from strategies.steps.context import is_called_by_trainer


def install() -> None:
    """Wraps the function that finds the resources of an op."""
    wrap(auto_control_deps, "_get_resource_inputs", _resources_of, in_step=False)


def _resources_of(original: Callable[[Any], Iterable[Any]], op: Any) -> Iterable[Any]:
    if is_called_by_trainer() and not (_may_take(op.type) and any(each.dtype in _DTYPES for each in op.inputs)):
        return ()
    return original(op)


#: A dataset, a variant, may touch resources that its function has captured.
_DTYPES = (tf.resource, tf.variant)
_ENUMS = frozenset(dtype.as_datatype_enum for dtype in _DTYPES)


@functools.cache
def _may_take(op_type: str) -> bool:
    """Returns True if ops of a type may have inputs of such a dtype."""
    definition = op_definitions.get(op_type)
    if definition is None:
        return True
    attributes = {each.name: each for each in definition.attr}

    def allows(argument: Any) -> bool:
        if not argument.type_attr and not argument.type_list_attr:
            return argument.type in _ENUMS
        allowed = attributes[argument.type_attr or argument.type_list_attr].allowed_values.list.type
        return not allowed or not _ENUMS.isdisjoint(allowed)

    return any(allows(argument) for argument in definition.input_arg)
