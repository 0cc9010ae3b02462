"""Placeholders for sharded weights in functions that gather the weights on each call and free them afterwards.

A function in a graph captures the tensors that it reads, once, when it is traced. Instead of sharded weights, it
captures placeholders, and each call replaces these by weights that are gathered for that call: no two calls hold the
same tensors.

The graph is not changed after it is finished, as it is without passes (`sharding.backward_gathers`), because a pass of
a pipeline is one function for all micro-batches, whose forward calls need different tensors, too; the order of gathers
and passes is fixed where a pass is called; and a step that only evaluates has no update at which its graph is finished.
It breaks if TensorFlow drops ``ConcreteFunction.set_external_captures``. A function of a weight that needs an op which
is not in `CHEAP` is kept until the backward pass: it costs memory, never a wrong number.

Tested in ``tests/keras_ext/pipeline/test_resharding.py`` and ``tests/strategies/sharding/test_backward_gathers.py``.

Source: `reshard_after_forward` of torch's FSDP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.replica.pass_context import tracing_pass

#: The attribute that a TensorFlow variable has if it is sharded over devices: the weight made of its shards.
SHARDED = "_keras_strategies_shards"
#: Operations between a weight and its use that are cheap enough to recompute.
CHEAP = frozenset(["Cast", "Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze"])

#: Takes variables of one unit, and returns their whole values, gathered after the current control dependencies.
Gather = Callable[[Sequence[Any]], Sequence[tf.Tensor]]


class _Placeholder(NamedTuple):
    """A placeholder for a weight.

    Attributes:
        tensor: a tensor of the graph in which the function is called.
        variable: the weight.
        unit: the id of the unit of weights that are gathered together.
        gather: gathers weights of that unit.
    """

    tensor: tf.Tensor
    variable: Any
    unit: int
    gather: Gather


class Placeholders:
    """The placeholders that the functions of one computation capture."""

    def __init__(self) -> None:
        # Keyed by the `id` of the variable, in the order of first use.
        self._made: dict[int, _Placeholder] = {}

    def captured(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: reading a sharded weight returns its placeholder."""
        return tracing_pass(placeholders=self)

    def get(self, variable: Any, unit: Any, gather: Gather) -> tf.Tensor:
        """Returns the placeholder of a variable. Call it where the current graph is the one with the calls.

        Args:
            variable: a sharded variable.
            unit: the same object for weights that may be gathered together.
            gather: gathers weights of that unit.
        """
        if id(variable) not in self._made:
            # A TensorFlow placeholder, so that computing with it is an error and not a wrong value.
            tensor = tf.compat.v1.placeholder(variable.dtype, variable.shape, name="weight_to_be_gathered")
            self._made[id(variable)] = _Placeholder(tensor, variable, id(unit), gather)
        return self._made[id(variable)].tensor

    def gathered(self, captured: Iterable[Any], after: Sequence[Any]) -> dict[int, tf.Tensor]:
        """Gathers the weights that a call needs, after some tensors; returns them by their placeholders' `id`s.

        Args:
            captured: the tensors that the called function captures, placeholders among them.
            after: the tensors to wait for.
        """
        wanted = {id(value) for value in captured}
        units: dict[int, list[_Placeholder]] = {}
        for each in self._made.values():
            if id(each.tensor) in wanted:
                units.setdefault(each.unit, []).append(each)
        found: dict[int, tf.Tensor] = {}
        for own in units.values():
            with tf.control_dependencies(list(after)):
                values = own[0].gather([each.variable for each in own])
            found.update((id(each.tensor), value) for each, value in zip(own, values, strict=True))
        return found

    def includes(self, value: Any) -> bool:
        """Returns True if a tensor is one of the placeholders."""
        return any(each.tensor is value for each in self._made.values())


class DerivedCapture:
    """A tensor in the body of a function that is cheaply computed from a captured tensor.

    A call that kept it for the backward pass would hold a whole weight until then: a reshaped tensor holds the weight's
    own memory, a cast one is a copy. The backward pass recomputes it from the weight that is gathered for that pass.

    Args:
        captured: the captured tensor.
        ops: the operations between the two, in order.
    """

    def __init__(self, captured: Any, ops: Sequence[tf.Operation]) -> None:
        self.captured = captured
        self._ops = ops

    @classmethod
    def from_tensor(cls, value: Any, from_outside: dict[int, Any]) -> DerivedCapture | None:
        """Returns the derivation of a tensor from a captured one; None if it needs more than cheap ops and constants.

        Args:
            value: a tensor of the body of a function.
            from_outside: the tensors that the function captures, by the `id` of their placeholders in the body.
        """
        ops: list[tf.Operation] = []
        while id(value) not in from_outside:
            op = getattr(value, "op", None)
            if op is None or op.type not in CHEAP or any(tf.get_static_value(each) is None for each in op.inputs[1:]):
                return None
            ops.insert(0, op)
            value = op.inputs[0]
        return cls(from_outside[id(value)], ops)

    def recompute(self, value: tf.Tensor) -> tf.Tensor:
        """Recomputes the tensor from another one, in the current graph."""
        for op in self._ops:
            inputs = [value, *(tf.constant(tf.get_static_value(each), each.dtype) for each in op.inputs[1:])]
            graph = tf.compat.v1.get_default_graph()
            value = graph.create_op(op.type, inputs, [op.outputs[0].dtype], attrs=op.node_def.attr).outputs[0]
        return value
