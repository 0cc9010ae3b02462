"""The operation that made a tensor, in a form that can be run again on other inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import op_definitions


@dataclass(frozen=True)
class Made:
    """The operation that made a tensor, in a graph or eagerly.

    Attributes:
        type: TensorFlow's name of the operation.
        inputs: its input tensors, in one list.
        output: the index of the tensor among the operation's outputs.
        attribute: returns the attribute of a name, None if there is none.
    """

    type: str
    inputs: Sequence[Any]
    output: int
    attribute: Callable[[str], Any]

    @property
    def is_stateful(self) -> bool:
        """True if the operation may give another result when it runs again."""
        return bool(op_definitions.get(self.type).is_stateful)

    def repeat(self, inputs: Sequence[Any]) -> Any:
        """Runs the operation on other inputs of the same dtypes; returns the output of the same index."""
        definition = op_definitions.get(self.type)
        arguments: dict[str, Any] = {}
        inferred, rest = set(), list(inputs)
        for each in definition.input_arg:
            inferred |= {each.type_attr, each.number_attr, each.type_list_attr}
            if each.number_attr:
                n = int(self.attribute(each.number_attr))
                arguments[each.name], rest = rest[:n], rest[n:]
            else:
                arguments[each.name] = rest.pop(0)
        arguments |= {each.name: self.attribute(each.name) for each in definition.attr if each.name not in inferred}
        function = getattr(tf.raw_ops, self.type)
        results = function(**_renamed(arguments, function))
        return results[self.output] if isinstance(results, (list, tuple)) else results

    @staticmethod
    def sum_of(base: Any, addend: Any) -> Made:
        """Returns the operation that adds two tensors."""
        return Made("AddV2", (base, addend), 0, lambda name: None)


def _renamed(arguments: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Returns keyword arguments of a function of ``tf.raw_ops`` for arguments by their names in the op's definition.

    Some names differ: ``Sum`` calls its dimensions `reduction_indices` in the definition and `axis` in Python. Such
    arguments are in the same order in both.
    """
    names = inspect.signature(function).parameters
    others = (name for name in names if name != "name" and name not in arguments)
    return {name if name in names else next(others): value for name, value in arguments.items()}
