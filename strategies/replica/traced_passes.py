"""The forward and the backward pass of a computation as two functions in a graph, traced once.

TensorFlow can differentiate calls of its functions, too, but then adds up gradients in another order, so that results
differ in their last bits from those of ops in line. Here a tape records the forward pass while it is traced, and gives
the gradient while the backward pass is traced, so that the results are those of ops in line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.replica.backward_halves import BackwardHalves
from strategies.replica.overwritten import is_overwritten, maximum, no_maximum
from strategies.replica.placeholders import DerivedCapture, Placeholders
from strategies.replica.recording import may_have_gradient, recorded
from strategies.replica.slices import Lookups, accumulated, added

#: Takes inputs. Returns the outputs, and a function that takes their gradients (None where not wanted) and returns the
#: gradients of inputs and variables; this function may be called several times.
Record = Callable[[Sequence[Any]], tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]]


#: Takes totals, and tensors to wait for before weights are gathered; returns the totals with gradients added to them.
Totals = Callable[..., list[Any]]


class _Backward(NamedTuple):
    """A backward pass: takes gradients of outputs, and totals; returns gradients of inputs, and totals.

    Attributes:
        function: the concrete TensorFlow function.
        has_gradient: for each input and variable, True if it has a gradient.
        is_dense: for each variable, True if its gradient is a tensor, which the function adds to the total.
        captured: the captured tensors, which belong to the forward pass' graph.
    """

    function: Any
    has_gradient: Sequence[bool]
    is_dense: Sequence[bool]
    captured: Sequence[Any]


class TracedPasses:
    """Both passes of a computation with inputs of certain shapes.

    Args:
        scope: returns a context manager that puts ops on the computation's device.
        record: computes the outputs, and differentiates them.
        variables: the TensorFlow variables whose gradients are computed.
        specs: the specs of the inputs.
        placeholders: the placeholders of weights that are gathered for each call; None if there are none.
    """

    def __init__(
        self,
        scope: Callable[[], contextlib.AbstractContextManager[None]],
        record: Record,
        variables: Sequence[Any],
        specs: Sequence[tf.TensorSpec],
        placeholders: Placeholders | None = None,
    ) -> None:
        self._scope = scope
        self._placeholders = placeholders
        self._variables = variables
        # The keys say which outputs have gradients: unused outputs have none, and pass none on.
        self._backward: dict[tuple[bool, ...], _Backward] = {}
        self._halves: dict[tuple[bool, ...], BackwardHalves] = {}
        self._nothings: dict[Any, tf.Tensor] = {}

        def forward(*inputs: tf.Tensor) -> list[Any]:
            self._inputs = inputs
            with scope():
                self._outputs, self._gradients_of = record(inputs)
            # Traced inside the forward pass, so that its captures are the tensors that it needs from it.
            captured = self._trace_back(tuple(map(may_have_gradient, self._outputs))).captured
            self._from_outside = _from_outside(tf.compat.v1.get_default_graph())
            self._kept = [value for value in captured if _is_made_in_graph(value) and self._derived(value) is None]
            self._positions = {id(value): index for index, value in enumerate((*inputs, *self._kept))}
            return [*self._outputs, *self._kept]

        with self._capturing():
            self._forward = _function(forward).get_concrete_function(*specs)
        self._from_outside = _from_outside(self._forward.graph)

    @property
    def held_bytes(self) -> int:
        """The bytes of the outputs, and of the tensors that the backward pass needs."""
        held = {id(value): value for value in (*self._outputs, *self._kept) if _has_own_memory(value)}
        return sum((value.shape.num_elements() or 0) * value.dtype.size for value in held.values())

    def call(self, inputs: Sequence[Any], after: Sequence[Any] = ()) -> tuple[list[Any], list[Any]]:
        """Returns the outputs, and the tensors that are kept for the backward pass.

        Args:
            inputs: the inputs of the call.
            after: tensors to wait for before weights are gathered for the call.
        """
        if self._placeholders is not None:
            captured = [outer for outer, _ in self._forward.graph.captures]
            self._forward.set_external_captures(self._with_weights(captured, after))
        made = self._forward(*inputs)
        return made[: len(self._outputs)], made[len(self._outputs) :]

    def call_back(
        self,
        inputs: Sequence[Any],
        kept: Sequence[Any],
        upstream: Sequence[Any],
        totals: Sequence[Any],
        after: Sequence[Any] = (),
    ) -> tuple[list[Any], list[Any]]:
        """Returns the gradients of inputs, and the totals with the gradients of variables added to them.

        Args:
            inputs: the inputs of the forward call.
            kept: the tensors that the forward call kept.
            upstream: gradients of the outputs, or None.
            totals: for each variable, a tensor, slices of rows, or None.
            after: tensors to wait for before weights are gathered for the backward pass.
        """
        backward = self._backward_for(_pattern(upstream))
        self._capture(backward.function, backward.captured, inputs, kept, after)
        given = (*(dy for dy in upstream if dy is not None), *self._given_totals(backward, totals))
        made = iter(backward.function(*given))
        gradients = [next(made) if has_one else None for has_one in backward.has_gradient]
        return gradients[: len(inputs)], self._new_totals(backward, gradients[len(inputs) :], totals)

    def call_back_in_halves(
        self, inputs: Sequence[Any], kept: Sequence[Any], upstream: Sequence[Any], after: Sequence[Any] = ()
    ) -> tuple[list[Any], Totals]:
        """Returns the gradients of inputs, and a function that computes the totals later; see `BackwardHalves`.

        Args:
            inputs: see `call_back`, as for the other arguments.
            kept: the tensors that the forward call kept.
            upstream: gradients of the outputs, or None.
            after: tensors to wait for before weights are gathered for the backward pass.
        """
        pattern, number = _pattern(upstream), len(inputs)
        backward = self._backward_for(pattern)
        given = [dy for dy in upstream if dy is not None]
        if pattern not in self._halves:
            with self._forward.graph.as_default():
                num_gradients = sum(backward.has_gradient[:number])
                self._halves[pattern] = BackwardHalves(backward.function, len(given), num_gradients, _function)
        halves = self._halves[pattern]
        self._capture(halves.first, halves.captured[0], inputs, kept, after)
        made, needed = halves.gradients(given)
        found = iter(made)

        def totals_with(totals: Sequence[Any], after: Sequence[Any] = ()) -> list[Any]:
            self._capture(halves.second, halves.captured[1], inputs, kept, after)
            rest = iter(halves.totals(needed, given, self._given_totals(backward, totals)))
            gradients = [next(rest) if has_one else None for has_one in backward.has_gradient[number:]]
            return self._new_totals(backward, gradients, totals)

        return [next(found) if has_one else None for has_one in backward.has_gradient[:number]], totals_with

    def _backward_for(self, pattern: tuple[bool, ...]) -> _Backward:
        if pattern not in self._backward:
            with self._forward.graph.as_default(), self._capturing():
                self._trace_back(pattern)
        return self._backward[pattern]

    def _capture(
        self, function: Any, captured: Sequence[Any], inputs: Sequence[Any], kept: Sequence[Any], after: Sequence[Any]
    ) -> None:
        """Gives a backward function the tensors of one call of the forward pass."""
        function.set_external_captures(
            self._with_weights([self._found(value, inputs, kept) for value in captured], after)
        )

    def _given_totals(self, backward: _Backward, totals: Sequence[Any]) -> list[Any]:
        """Returns the totals as arguments: the function makes the sums, one op for a pass instead of one a variable."""
        return [
            self._nothing(variable) if not dense else _none_yet(variable) if total is None else total
            for variable, total, dense in zip(self._variables, totals, backward.is_dense, strict=True)
        ]

    def _new_totals(self, backward: _Backward, gradients: Sequence[Any], totals: Sequence[Any]) -> list[Any]:
        new = [
            gradient if dense or gradient is None else _slices(variable, *gradient)
            for variable, gradient, dense in zip(self._variables, gradients, backward.is_dense, strict=True)
        ]
        dependence = shares.current_dependence()
        return [
            gradient if dense else accumulated(total, gradient, dependence)
            for total, gradient, dense in zip(totals, new, backward.is_dense, strict=True)
        ]

    def _nothing(self, variable: Any) -> tf.Tensor:
        """Returns a dummy scalar, the same for all calls, in place of a total of slices, which the caller computes.

        TensorFlow would make another function for each constant with which the function is called.
        """
        if variable.dtype not in self._nothings:
            self._nothings[variable.dtype] = tf.zeros((), variable.dtype)
        return self._nothings[variable.dtype]

    def _trace_back(self, pattern: tuple[bool, ...]) -> _Backward:
        above = [tf.TensorSpec(y.shape, y.dtype) for y, wanted in zip(self._outputs, pattern, strict=True) if wanted]
        # They have the shapes of the variables, except where gradients are slices of rows.
        totals = [tf.TensorSpec(None, variable.dtype) for variable in self._variables]
        first = len(self._inputs)
        has_gradient: list[bool] = []
        is_dense: list[bool] = []

        def backward(*given: tf.Tensor) -> list[Any]:
            upstream, sums = iter(given[: len(above)]), given[len(above) :]
            with self._scope():
                found = self._gradients_of([next(upstream) if wanted else None for wanted in pattern])
                is_dense[:] = [isinstance(gradient, tf.Tensor) for gradient in found[first:]]
                for index, total in enumerate(sums):
                    if is_dense[index]:
                        total.set_shape(self._variables[index].shape)
                        join = maximum if is_overwritten(self._variables[index]) else added
                        found[first + index] = join((total, found[first + index]))
            has_gradient[:] = [gradient is not None for gradient in found]
            # The shape of slices is left out: it is not used, and TensorFlow makes another function for calls with an
            # unused output.
            return [
                _by_lookups(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
                for gradient in found
                if gradient is not None
            ]

        function = _function(backward).get_concrete_function(*above, *totals)
        self._backward[pattern] = _Backward(function, has_gradient, is_dense, list(function.captured_inputs))
        return self._backward[pattern]

    def _found(self, value: Any, inputs: Sequence[Any], kept: Sequence[Any]) -> Any:
        """Returns the tensor that a call of the backward pass captures: an input, a kept one, or one from outside.

        For a tensor that is cheaply computed from a placeholder, it returns the `DerivedCapture`.
        """
        if id(value) in self._positions:
            return (*inputs, *kept)[self._positions[id(value)]]
        outer = self._from_outside.get(id(value))
        return (self._derived(value) or value) if outer is None else outer

    def _capturing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._placeholders is None else self._placeholders.captured()

    def _derived(self, value: Any) -> DerivedCapture | None:
        """Returns how a tensor is computed from a placeholder, if that is cheap; else None."""
        if self._placeholders is None:
            return None
        found = DerivedCapture.from_tensor(value, self._from_outside)
        return found if found is not None and self._placeholders.includes(found.captured) else None

    def _with_weights(self, captured: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """Returns the captures of a call, with placeholders replaced by weights that are gathered for the call."""
        if self._placeholders is None:
            return list(captured)
        sources = [value.captured if isinstance(value, DerivedCapture) else value for value in captured]
        weights = self._placeholders.gathered(sources, after)
        found = [weights.get(id(source), source) for source in sources]
        return [
            value.recompute(weight) if isinstance(value, DerivedCapture) else weight
            for value, weight in zip(captured, found, strict=True)
        ]


def _pattern(upstream: Sequence[Any]) -> tuple[bool, ...]:
    """Returns for each output whether it has a gradient."""
    return tuple(dy is not None for dy in upstream)


def _none_yet(variable: Any) -> tf.Tensor:
    """Returns the total before any gradient is added."""
    return no_maximum(variable) if is_overwritten(variable) else tf.zeros(variable.shape, variable.dtype)


def _from_outside(graph: Any) -> dict[int, Any]:
    """Returns the tensors that a function captures, by the `id` of their placeholders in its body."""
    return {id(inner): outer for outer, inner in graph.captures}


def _by_lookups(gradient: tf.IndexedSlices) -> tuple[list[Any], ...]:
    """Returns values and indices of slices, by the groups of ``Lookups``, which are known only while tracing."""
    found = Lookups.from_gradient(gradient, shares.current_dependence())
    return tuple([(each.values, each.indices) for each in some] for some in (found.shared, found.own, found.unique))


def _slices(variable: Any, *groups: Sequence[Any]) -> tf.IndexedSlices:
    """Returns the gradient with these values and indices, which are in the groups of ``Lookups``."""
    shape = tf.constant(variable.shape.as_list())
    kinds = (Kind.SAME, Kind.ROWS, Kind.DISTINCT)
    return Lookups(
        *(
            tuple(tf.IndexedSlices(values, mark(indices, kind), shape) for values, indices in group)
            for group, kind in zip(groups, kinds, strict=True)
        )
    ).joined()


def _function(function: Callable[..., Any]) -> Any:
    # Never inlined where it is called, which would make a graph of many calls large.
    attributes = {"_noinline": True}

    def traced(*args: Any) -> Any:
        # Recorded by the tape of the passes, even where the tapes around it must not record the calls.
        with recorded():
            return function(*args)

    return tf.function(traced, autograph=False, jit_compile=False, experimental_attributes=attributes)


def _has_own_memory(value: Any) -> bool:
    """Returns True if a tensor of a graph is neither a handle nor the value of a variable."""
    return value.dtype not in (tf.resource, tf.variant) and value.op.type != "ReadVariableOp"


def _is_made_in_graph(value: Any) -> bool:
    """Returns True if a tensor is the result of an op in a function, and neither its argument nor a capture."""
    return not hasattr(value, "numpy") and value.op.type != "Placeholder"
