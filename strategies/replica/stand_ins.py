"""Stand-ins for weights in shards, in functions of which each call gathers the weights anew and drops them behind it.

A function in a graph captures the tensors that it reads, once, when it is traced. Where weights are in shards, it
captures stand-ins, which nothing computes, and each call gives it, in their place, weights that are gathered for that
call: no two calls hold the same tensors.

Tested in ``tests/keras_ext/pipeline/test_resharding.py`` and ``tests/strategies/engine/test_backward_gathers.py``.

Source: `reshard_after_forward` of torch's FSDP.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

#: On a variable of TensorFlow of which each device holds a shard: the weight of these.
SHARDED = "_keras_strategies_shards"
#: Operations between a weight and its use that are cheap enough to be computed twice.
CHEAP = frozenset(["Cast", "Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze"])

#: Takes variables that travel together, and returns their whole values, behind the present control dependencies.
Gather = Callable[[Sequence[Any]], Sequence[tf.Tensor]]


class _StandIn(NamedTuple):
    """A tensor that stands for a weight.

    Attributes:
        tensor: of the graph in which the function is called.
        variable: the weight.
        unit: by its id, the weights that travel together.
        gather: gathers weights of that unit.
    """

    tensor: tf.Tensor
    variable: Any
    unit: int
    gather: Gather


class StandIns:
    """The stand-ins that the functions of one computation capture."""

    def __init__(self) -> None:
        # By the variable, in the order of their first use.
        self._made: dict[int, _StandIn] = {}

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Inside, what reads a weight in shards gets its stand-in."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def of(self, variable: Any, unit: Any, gather: Gather) -> tf.Tensor:
        """Returns the stand-in of a variable. Call it where the present graph is the one with the calls.

        Args:
            variable: in shards.
            unit: the same object for weights that may travel together.
            gather: gathers weights of that unit.
        """
        if id(variable) not in self._made:
            # Whoever computes with it gets an error, and not another value.
            tensor = tf.compat.v1.placeholder(variable.dtype, variable.shape, name="weight_to_be_gathered")
            self._made[id(variable)] = _StandIn(tensor, variable, id(unit), gather)
        return self._made[id(variable)].tensor

    def gathered(self, captured: Iterable[Any], after: Sequence[Any]) -> dict[int, tf.Tensor]:
        """Returns the weights that a call needs by the `id` of their stand-ins, gathered once tensors are there.

        Args:
            captured: what the called function captures, stand-ins among it.
            after: tensors.
        """
        wanted = {id(value) for value in captured}
        units: dict[int, list[_StandIn]] = {}
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
        """True if a tensor is one of the stand-ins."""
        return any(each.tensor is value for each in self._made.values())


class MadeOfCapture:
    """A tensor in the body of a function that is cheaply made of a tensor from outside.

    A call that kept it for the backward pass would hold a whole weight until then: in the weight's own memory, as a
    reshaped one, or as a copy, as a cast one. The backward pass makes it again, of the weight that is gathered for it.

    Args:
        captured: the tensor from outside.
        ops: those between, from the first one.
    """

    def __init__(self, captured: Any, ops: Sequence[tf.Operation]) -> None:
        self.captured = captured
        self._ops = ops

    @classmethod
    def of(cls, value: Any, from_outside: dict[int, Any]) -> MadeOfCapture | None:
        """Returns what a tensor is made of; None if that is more than a tensor from outside and constants.

        Args:
            value: of the body of a function.
            from_outside: by the `id` of what stands for it in the body, what the function captures.
        """
        ops: list[tf.Operation] = []
        while id(value) not in from_outside:
            op = getattr(value, "op", None)
            if op is None or op.type not in CHEAP or any(tf.get_static_value(each) is None for each in op.inputs[1:]):
                return None
            ops.insert(0, op)
            value = op.inputs[0]
        return cls(from_outside[id(value)], ops)

    def made_of(self, value: tf.Tensor) -> tf.Tensor:
        """Makes it again, of another tensor and in the present graph."""
        for op in self._ops:
            inputs = [value, *(tf.constant(tf.get_static_value(each), each.dtype) for each in op.inputs[1:])]
            graph = tf.compat.v1.get_default_graph()
            value = graph.create_op(op.type, inputs, [op.outputs[0].dtype], attrs=op.node_def.attr).outputs[0]
        return value


_current: contextvars.ContextVar[StandIns | None] = contextvars.ContextVar("keras_strategies_stand_ins", default=None)


def current_stand_ins() -> StandIns | None:
    """Returns the stand-ins of the function that is traced; None where what is read is gathered there."""
    return _current.get()
