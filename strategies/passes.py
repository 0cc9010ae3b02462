"""The forward pass of a computation, and its backward pass when it is wanted.

Either in line, or as two functions in the graph that are traced once, however often they are called. TensorFlow can
differentiate calls of its functions, too, but adds up gradients in another order then, so that results differ in their
last bits. Here a tape records the forward pass while that is traced, and gives the gradient while the backward pass is:
both ways the results are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

#: Takes a gradient, or None, for each output, tensors that are to be there before, and totals, to which the gradients
#: of the variables are added; None, for all or for one of them, is nothing. Gives the gradients of the inputs, and the
#: totals, None where there is nothing. To be called once at most.
Pull = Callable[..., tuple[list[Any], list[Any]]]


class Again(NamedTuple):
    """How a computation is done again for its backward pass, so that nothing that it makes is held until then.

    Attributes:
        state: returns tensors that tell what changes with each call, such as the seeds of random draws. Called before
            the computation.
        function: takes these as a list, and the inputs; returns the outputs, and changes nothing.
    """

    state: Callable[[], list[Any]]
    function: Callable[..., Sequence[Any]]


#: Takes gradients of outputs, None for those not wanted, and totals. Gives gradients of inputs, and the totals.
_Differentiate = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


class Passes:
    """A computation that may be called several times.

    Args:
        place: gives a context in which ops are on their device.
        function: takes tensors, returns tensors.
        variables: TensorFlow's, that `function` reads and of which gradients can be had.
        again: without it, what the backward pass takes is held.
        in_line: else both passes are functions in the graph, traced once for each set of shapes. Where ops run as they
            are called, there is no graph, and both are in line.
    """

    def __init__(
        self,
        place: Callable[[], contextlib.AbstractContextManager[None]],
        function: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        again: Again | None = None,
        in_line: bool = True,
    ) -> None:
        self._place = place
        self._function = function
        self._variables = list(variables)
        self._again = again
        self._in_line = in_line
        self._traced: dict[Any, _Traced] = {}

    def __call__(self, inputs: Sequence[Any], after: Sequence[Any] = ()) -> tuple[list[Any], Pull]:
        """Computes the outputs.

        Args:
            inputs: tensors; gradients of floating-point ones can be had.
            after: tensors that are to be there before the computation begins.
        """
        with self._place():
            with tf.control_dependencies(list(after)):
                own = [tf.identity(value) for value in inputs]
            if self._in_line or tf.executing_eagerly():
                outputs, differentiate = self._forward(own)
            else:
                outputs, differentiate = self._call(own)

        def pull(
            upstream: Sequence[Any], after: Sequence[Any] = (), totals: Sequence[Any] | None = None
        ) -> tuple[list[Any], list[Any]]:
            given = [dy if y.dtype.is_floating else None for y, dy in zip(outputs, upstream, strict=True)]
            totals = [None] * len(self._variables) if totals is None else totals
            if all(dy is None for dy in given):
                return [None] * len(own), list(totals)
            with self._place():
                with tf.control_dependencies(list(after)):
                    above = [None if dy is None else tf.identity(dy) for dy in given]
                return differentiate(above, totals)

        return outputs, pull

    def held_bytes(self, inputs: Sequence[Any]) -> int:
        """The size of what is made of such inputs and lives on: outputs, and what the backward pass takes.

        Found without computing; what has no known shape counts for nothing.
        """
        return self._trace([tf.TensorSpec(value.shape, value.dtype) for value in inputs]).held_bytes

    def _forward(self, inputs: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """The outputs, and what gives gradients, of those of the outputs, None for those not wanted."""
        outputs, gradients_of = self._recorded(inputs)

        def differentiate(upstream: Sequence[Any], totals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            found = gradients_of(upstream)
            number = len(inputs)
            return found[:number], [added(pair) for pair in zip(totals, found[number:], strict=True)]

        return outputs, differentiate

    def _recorded(self, inputs: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """The outputs, and what gives gradients of inputs and variables."""
        if self._again is None:
            with self._recording(inputs) as tape:
                outputs = list(self._function(*inputs))
            return outputs, lambda upstream: self._gradients(tape, outputs, inputs, upstream)
        again, state = self._again, self._again.state()

        def gradients_of(upstream: Sequence[Any]) -> list[Any]:
            with self._recording(inputs) as tape:
                made = list(again.function(state, *inputs))
            return self._gradients(tape, made, inputs, upstream)

        return list(self._function(*inputs)), gradients_of

    @contextlib.contextmanager
    def _recording(self, inputs: Sequence[Any]) -> Iterator[tf.GradientTape]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*filter(_is_floating, inputs), *self._variables])
            yield tape

    def _gradients(
        self, tape: tf.GradientTape, outputs: Sequence[Any], inputs: Sequence[Any], upstream: Sequence[Any]
    ) -> list[Any]:
        """Of inputs and variables."""
        pairs = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if dy is not None]
        sources = [*filter(_is_floating, inputs), *self._variables]
        found = iter(tape.gradient([y for y, _ in pairs], sources, output_gradients=[dy for _, dy in pairs]))
        return [*(next(found) if _is_floating(value) else None for value in inputs), *found]

    def _call(self, inputs: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """As `_forward`, by functions."""
        specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)
        if specs not in self._traced:
            self._traced[specs] = self._trace(specs)
        traced = self._traced[specs]
        made = traced.forward(*inputs)
        outputs, kept = made[: traced.num_outputs], made[traced.num_outputs :]

        def differentiate(upstream: Sequence[Any], totals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            # The function takes a gradient for each.
            pairs = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if _is_floating(y)]
            above = [tf.zeros_like(y) if dy is None else dy for y, dy in pairs]
            # Sums are made in it: one op for a pass, where each variable had its own.
            dense = [
                _zeros(variable, is_dense) if total is None or not is_dense else total
                for variable, total, is_dense in zip(self._variables, totals, traced.is_dense, strict=True)
            ]
            traced.backward.set_external_captures([find(inputs, kept) for find in traced.taken])
            found = iter(traced.backward(*above, *dense))
            gradients = [next(found) if has_one else None for has_one in traced.has_gradient]
            number = len(inputs)
            new = [
                gradient if is_dense else added((total, gradient))
                for total, gradient, is_dense in zip(totals, gradients[number:], traced.is_dense, strict=True)
            ]
            return gradients[:number], new

        return outputs, differentiate

    def _trace(self, specs: Sequence[tf.TensorSpec]) -> _Traced:
        backward: Any = None
        num_outputs = held_bytes = 0
        has_gradient: list[bool] = []
        is_dense: list[bool] = []
        # Places among the inputs, and among what the forward pass keeps for the backward pass, by `id`.
        given: dict[int, int] = {}
        kept: dict[int, int] = {}

        def on_way_forward(*inputs: tf.Tensor) -> list[Any]:
            nonlocal backward, num_outputs, held_bytes
            with self._place():
                outputs, gradients_of = self._recorded(inputs)
            above = [tf.TensorSpec(y.shape, y.dtype) for y in filter(_is_floating, outputs)]

            def on_way_back(*given: tf.Tensor) -> list[Any]:
                upstream, totals = iter(given[: len(above)]), given[len(above) :]
                with self._place():
                    found = gradients_of([next(upstream) if _is_floating(y) else None for y in outputs])
                    is_dense[:] = [isinstance(gradient, tf.Tensor) for gradient in found[len(inputs) :]]
                    for place, total in enumerate(totals):
                        if is_dense[place]:
                            total.set_shape(self._variables[place].shape)
                            found[len(inputs) + place] = added((total, found[len(inputs) + place]))
                has_gradient[:] = [gradient is not None for gradient in found]
                return [gradient for gradient in found if gradient is not None]

            # Totals have the shapes of the variables, but for those whose gradients are slices of rows.
            totals = [tf.TensorSpec(None, variable.dtype) for variable in self._variables]
            # Traced inside, so that what it takes of the forward pass shows as what it captures.
            backward = _function(on_way_back).get_concrete_function(*above, *totals)
            num_outputs = len(outputs)
            given.update((id(value), place) for place, value in enumerate(inputs))
            keep = [value for value in backward.captured_inputs if _is_made_in_graph(value)]
            kept.update((id(value), place) for place, value in enumerate(keep))
            held = {id(value): value for value in (*outputs, *keep) if _has_own_memory(value)}
            held_bytes = sum((value.shape.num_elements() or 0) * value.dtype.size for value in held.values())
            return [*outputs, *keep]

        forward = _function(on_way_forward).get_concrete_function(*specs)
        from_outside = {id(inner): outer for outer, inner in forward.graph.captures}

        def finder(value: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
            """Finds what the backward pass captures among a call's inputs, and what its forward pass has kept."""
            if id(value) in given:
                return lambda inputs, _: inputs[given[id(value)]]
            if id(value) in kept:
                return lambda _, keep: keep[kept[id(value)]]
            outer = from_outside.get(id(value), value)
            return lambda _, __: outer

        taken = list(map(finder, backward.captured_inputs))
        return _Traced(forward, backward, num_outputs, has_gradient, is_dense, taken, held_bytes)


class _Traced(NamedTuple):
    """Two functions, and how what the first has made comes to the second."""

    forward: Any
    backward: Any
    num_outputs: int
    has_gradient: Sequence[bool]
    is_dense: Sequence[bool]
    taken: Sequence[Callable[[Sequence[Any], Sequence[Any]], Any]]
    held_bytes: int


def _function(function: Callable[..., Any]) -> Any:
    # Never expanded where it is called: that is what makes a graph of many calls large.
    attributes = {"_noinline": True}
    return tf.function(function, autograph=False, jit_compile=False, experimental_attributes=attributes)


def added(gradients: Iterable[Any]) -> Any:
    """Returns the sum of gradients in their order, which may be slices of rows; None of none."""
    total = None
    for gradient in gradients:
        total = gradient if total is None else total if gradient is None else _sum_of(total, gradient)
    return total


def _sum_of(one: Any, other: Any) -> Any:
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        values, indices = tf.concat([one.values, other.values], 0), tf.concat([one.indices, other.indices], 0)
        return tf.IndexedSlices(values, indices, one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def _zeros(variable: Any, has_its_shape: bool) -> tf.Tensor:
    return tf.zeros(variable.shape if has_its_shape else (), variable.dtype)


def _is_floating(value: Any) -> bool:
    return bool(value.dtype.is_floating)


def _has_own_memory(value: Any) -> bool:
    """Whether a tensor of a graph is neither a handle nor what a variable holds."""
    return value.dtype not in (tf.resource, tf.variant) and value.op.type != "ReadVariableOp"


def _is_made_in_graph(value: Any) -> bool:
    """Whether a tensor is the result of an op in a function, and neither given to it nor taken from outside."""
    return not hasattr(value, "numpy") and value.op.type != "Placeholder"
