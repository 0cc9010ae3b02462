"""The forward pass of a computation, and its backward pass on request: in line, or as functions in the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.batches import shares
from strategies.replica.overwritten import is_overwritten, maximum, warn_if_summed
from strategies.replica.pass_context import tracing_pass
from strategies.replica.placeholders import SHARDED, Placeholders
from strategies.replica.recording import may_have_gradient, with_distinct_gradients
from strategies.replica.rounding import unrounded
from strategies.replica.slices import accumulated
from strategies.replica.traced_passes import Totals, TracedPasses


class Recompute(NamedTuple):
    """Recomputation in the backward pass, so that intermediate tensors are not held until then.

    Attributes:
        state: returns the state that changes with each call, such as the seeds of random draws, as tensors. Called
            before the computation.
        function: takes the state as a list, and the inputs; returns the outputs, and has no side effects.
        hold: takes the inputs; returns a function that takes the gradients of the outputs and returns the inputs in the
            backward pass. None to hold them where they are. Not for passes in line.
    """

    state: Callable[[], list[Any]]
    function: Callable[..., Sequence[Any]]
    hold: Callable[[Sequence[Any]], Callable[[Sequence[Any]], Sequence[Any]]] | None = None


class _Differentiate(NamedTuple):
    """The backward pass of one call.

    Attributes:
        whole: takes gradients of outputs (None where not wanted), totals, and tensors to wait for before weights are
            gathered. Returns gradients of inputs, and the totals.
        in_halves: takes the same without totals. Returns gradients of inputs, and a function that takes totals, and
            tensors to wait for, and returns the totals.
    """

    whole: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
    in_halves: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], Totals]]


class Vjp:
    """The backward pass of one call of `Passes`. Call it, or `in_halves`, at most once.

    Args:
        scope: returns a context manager that puts ops on the computation's device.
        outputs: the outputs of the call.
        inputs: its inputs.
        num_variables: the number of variables.
        differentiate: computes the gradients.
    """

    def __init__(
        self,
        scope: Callable[[], contextlib.AbstractContextManager[None]],
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        num_variables: int,
        differentiate: _Differentiate,
    ) -> None:
        self._scope = scope
        self._wanted = [may_have_gradient(y) for y in outputs]
        self._num_inputs = len(inputs)
        self._num_variables = num_variables
        self._differentiate = differentiate

    def __call__(
        self, upstream: Sequence[Any], after: Sequence[Any] = (), totals: Sequence[Any] | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Returns the gradients of the inputs, and the totals; each is None if there is none.

        Args:
            upstream: a gradient, or None, for each output.
            after: tensors to wait for.
            totals: for each variable, what its gradient is added to. None, instead of all or of one, counts as zero.
        """
        totals = [None] * self._num_variables if totals is None else totals
        given = self._given(upstream)
        if all(dy is None for dy in given):
            return [None] * self._num_inputs, list(totals)
        with self._scope():
            return self._differentiate.whole(_after(after, given), totals, after)

    def in_halves(self, upstream: Sequence[Any], after: Sequence[Any] = ()) -> tuple[list[Any], Totals]:
        """Returns the gradients of the inputs, and a function that computes the totals later.

        In line, and in eager execution, all gradients are computed at once, and only added to the totals later.

        Args:
            upstream: a gradient, or None, for each output.
            after: tensors to wait for.

        Returns:
            The gradients, and a function that takes totals, and tensors to wait for, and returns the totals. Call it
            at most once.
        """
        given = self._given(upstream)
        if all(dy is None for dy in given):
            return [None] * self._num_inputs, lambda totals, after=(): list(totals)
        with self._scope():
            gradients, finish = self._differentiate.in_halves(_after(after, given), after)

        def add_to(totals: Sequence[Any], after: Sequence[Any] = ()) -> list[Any]:
            with self._scope(), tf.control_dependencies(list(after)):
                return finish(totals, after)

        return gradients, add_to

    def _given(self, upstream: Sequence[Any]) -> list[Any]:
        return [dy if wanted else None for wanted, dy in zip(self._wanted, upstream, strict=True)]


class Passes:
    """A computation that may be called several times; each call has its own backward pass.

    Args:
        scope: returns a context manager that puts ops on the computation's device.
        function: takes tensors, returns tensors.
        variables: the TensorFlow variables that `function` reads and whose gradients may be asked for.
        recompute: without it, the tensors that the backward pass needs are held.
        in_line: if False, both passes are functions in the graph, traced once for each set of shapes. In eager
            execution there is no graph, and both are in line.
        reshard: sharded weights are gathered for each pass, after the tensors for which it waits, and freed after it.
            Both passes are functions then. Without sharded weights it has no effect.
        sums: gradients of variables are terms of sums, so they are returned unrounded (see `rounding`).
    """

    def __init__(
        self,
        scope: Callable[[], contextlib.AbstractContextManager[None]],
        function: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        recompute: Recompute | None = None,
        in_line: bool = True,
        reshard: bool = False,
        sums: bool = False,
    ) -> None:
        self._sums = sums
        self._scope = scope
        self._function = function
        self._variables = list(variables)
        self._recompute = recompute
        self._placeholders = Placeholders() if reshard and any(SHARDED in vars(each) for each in variables) else None
        self._in_line = in_line and self._placeholders is None
        self._traced: dict[Any, TracedPasses] = {}

    def __call__(self, inputs: Sequence[Any], after: Sequence[Any] = ()) -> tuple[list[Any], Vjp]:
        """Computes the outputs, and returns them with the vjp.

        Args:
            inputs: tensors; floating-point and complex ones can have gradients.
            after: tensors to wait for before the computation begins.
        """
        with self._scope():
            with tf.control_dependencies(list(after)):
                own = [tf.identity(value) for value in inputs]
            if self._in_line or tf.executing_eagerly():
                outputs, differentiate = self._forward(own)
            else:
                outputs, differentiate = self._call(own, after)
        return outputs, Vjp(self._scope, outputs, own, len(self._variables), differentiate)

    def held_bytes(self, inputs: Sequence[Any]) -> int:
        """Returns the bytes that a call on such inputs keeps alive: outputs, and tensors that the backward pass needs.

        To find them, the passes are traced, but not run. Tensors of unknown shape count as 0 bytes.
        """
        return self._trace(tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)).held_bytes

    def _forward(self, inputs: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """Computes the outputs in line; returns them with the function that differentiates them."""
        outputs, gradients_of = self._recorded(inputs)

        def in_halves(upstream: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], Totals]:
            del after
            found = gradients_of(upstream)

            def add_to(totals: Sequence[Any], after: Sequence[Any]) -> list[Any]:
                del after
                dependence = shares.current_dependence()
                return [
                    maximum([total, own]) if is_overwritten(variable) else accumulated(total, own, dependence)
                    for variable, total, own in zip(self._variables, totals, found[len(inputs) :], strict=True)
                ]

            return found[: len(inputs)], add_to

        def whole(upstream: Sequence[Any], totals: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            gradients, add_to = in_halves(upstream, after)
            return gradients, add_to(totals, after)

        return outputs, _Differentiate(whole, in_halves)

    def _recorded(self, inputs: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Computes the outputs; returns them with a function from their gradients to those of inputs and variables."""
        if self._recompute is None:
            with self._recording(inputs) as tape:
                outputs = list(self._function(*with_distinct_gradients(inputs)))
            return outputs, lambda upstream: self._gradients(tape, outputs, inputs, upstream)
        recompute, state = self._recompute, self._recompute.state()

        def gradients_of(upstream: Sequence[Any]) -> list[Any]:
            with self._recording(inputs) as tape:
                made = list(recompute.function(state, *with_distinct_gradients(inputs)))
            return self._gradients(tape, made, inputs, upstream)

        return list(self._function(*inputs)), gradients_of

    @contextlib.contextmanager
    def _recording(self, inputs: Sequence[Any]) -> Iterator[tf.GradientTape]:
        # Persistent only in a graph, where the gradient may be taken several times and a tape holds no memory.
        with tf.GradientTape(persistent=not tf.executing_eagerly(), watch_accessed_variables=False) as tape:
            tape.watch([*filter(may_have_gradient, inputs), *self._variables])
            yield tape

    def _gradients(
        self, tape: tf.GradientTape, outputs: Sequence[Any], inputs: Sequence[Any], upstream: Sequence[Any]
    ) -> list[Any]:
        """Returns the gradients of inputs and variables."""
        pairs = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if dy is not None]
        sources = [*filter(may_have_gradient, inputs), *self._variables]
        with tracing_pass(is_differentiated=True):
            found = iter(tape.gradient([y for y, _ in pairs], sources, output_gradients=[dy for _, dy in pairs]))
        input_gradients = [next(found) if may_have_gradient(value) else None for value in inputs]
        variable_gradients = list(found)
        dependence = shares.current_dependence()
        for index, variable in enumerate(self._variables) if self._sums else ():
            warn_if_summed(variable_gradients[index], variable, dependence)
            variable_gradients[index] = unrounded(variable_gradients[index], variable, dependence)
        return [*input_gradients, *variable_gradients]

    def _call(self, inputs: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """Does the same as `_forward`, with functions in the graph."""
        specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)
        traced = self._trace(specs)
        outputs, kept = traced.call(inputs, after)
        hold = None if self._recompute is None else self._recompute.hold
        fetch = None if hold is None else hold(inputs)

        def held(upstream: Sequence[Any]) -> Sequence[Any]:
            return inputs if fetch is None else fetch([dy for dy in upstream if dy is not None])

        def whole(upstream: Sequence[Any], totals: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            return traced.call_back(held(upstream), kept, upstream, totals, after)

        def in_halves(upstream: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], Totals]:
            return traced.call_back_in_halves(held(upstream), kept, upstream, after)

        return outputs, _Differentiate(whole, in_halves)

    def _trace(self, specs: tuple[tf.TensorSpec, ...]) -> TracedPasses:
        if specs not in self._traced:
            self._traced[specs] = TracedPasses(self._scope, self._recorded, self._variables, specs, self._placeholders)
        return self._traced[specs]


def _after(after: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients, once other tensors are ready."""
    with tf.control_dependencies(list(after)):
        return [None if dy is None else tf.identity(dy) for dy in gradients]
