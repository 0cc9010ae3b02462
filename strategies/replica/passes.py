"""The forward pass of a computation, and its backward pass when it is wanted: in line, or as functions in the graph."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.batches import shares
from strategies.replica.overwritten import is_overwritten, maximum, warn_if_summed
from strategies.replica.rounding import unrounded
from strategies.replica.slices import accumulated
from strategies.replica.stand_ins import SHARDED, StandIns
from strategies.replica.traced_passes import TracedPasses, is_floating

#: Takes a gradient, or None, for each output, tensors that are to be there before, and totals, to which the gradients
#: of the variables are added; None, for all or for one of them, is nothing. Gives the gradients of the inputs, and the
#: totals, None where there is nothing. To be called once at most.
Vjp = Callable[..., tuple[list[Any], list[Any]]]


_differentiates: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_passes", default=False)


def differentiates_passes() -> bool:
    """True while gradients of :class:`Passes` are made, behind which more forward passes may come."""
    return _differentiates.get()


class Recompute(NamedTuple):
    """The recompute of a computation in its backward pass, so that nothing that it makes is held until then.

    Attributes:
        state: returns tensors that tell what changes with each call, such as the seeds of random draws. Called before
            the computation.
        function: takes these as a list, and the inputs; returns the outputs, and changes nothing.
        hold: takes the inputs; returns what gives them to the backward pass, called with the gradients of the outputs.
            None to hold them where they are. Not for passes in line.
    """

    state: Callable[[], list[Any]]
    function: Callable[..., Sequence[Any]]
    hold: Callable[[Sequence[Any]], Callable[[Sequence[Any]], Sequence[Any]]] | None = None


#: Takes gradients of outputs, None for those not wanted, totals, and tensors that are to be there before weights are
#: gathered. Gives gradients of inputs, and the totals.
_Differentiate = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


class Passes:
    """A computation that may be called several times.

    Args:
        place: gives a context in which ops are on their device.
        function: takes tensors, returns tensors.
        variables: TensorFlow's, that `function` reads and of which gradients can be had.
        recompute: without it, what the backward pass takes is held.
        in_line: else both passes are functions in the graph, traced once for each set of shapes. Where ops run as they
            are called, there is no graph, and both are in line.
        reshard: weights in shards are gathered for each pass, once the tensors are there for which it waits, and
            dropped behind it. Both passes are functions then; without such weights it is nothing.
        sums: gradients of variables are terms of sums: what was rounded is given as it was before (`rounding`).
    """

    def __init__(
        self,
        place: Callable[[], contextlib.AbstractContextManager[None]],
        function: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        recompute: Recompute | None = None,
        in_line: bool = True,
        reshard: bool = False,
        sums: bool = False,
    ) -> None:
        self._sums = sums
        self._place = place
        self._function = function
        self._variables = list(variables)
        self._recompute = recompute
        self._stand_ins = StandIns() if reshard and any(SHARDED in vars(each) for each in variables) else None
        self._in_line = in_line and self._stand_ins is None
        self._traced: dict[Any, TracedPasses] = {}

    def __call__(self, inputs: Sequence[Any], after: Sequence[Any] = ()) -> tuple[list[Any], Vjp]:
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
                outputs, differentiate = self._call(own, after)

        def vjp(
            upstream: Sequence[Any], after: Sequence[Any] = (), totals: Sequence[Any] | None = None
        ) -> tuple[list[Any], list[Any]]:
            given = [dy if is_floating(y) else None for y, dy in zip(outputs, upstream, strict=True)]
            totals = [None] * len(self._variables) if totals is None else totals
            if all(dy is None for dy in given):
                return [None] * len(own), list(totals)
            with self._place():
                with tf.control_dependencies(list(after)):
                    above = [None if dy is None else tf.identity(dy) for dy in given]
                return differentiate(above, totals, after)

        return outputs, vjp

    def held_bytes(self, inputs: Sequence[Any]) -> int:
        """The size of what is made of such inputs and lives on: outputs, and what the backward pass takes.

        Found without computing; what has no known shape counts for nothing.
        """
        return self._trace(tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)).held_bytes

    def _forward(self, inputs: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """The outputs, and what gives gradients, of those of the outputs, None for those not wanted."""
        outputs, gradients_of = self._recorded(inputs)

        def differentiate(
            upstream: Sequence[Any], totals: Sequence[Any], after: Sequence[Any]
        ) -> tuple[list[Any], list[Any]]:
            del after
            found = gradients_of(upstream)
            number = len(inputs)
            dependence = shares.dependence_here()
            return found[:number], [
                maximum([total, own]) if is_overwritten(variable) else accumulated(total, own, dependence)
                for variable, total, own in zip(self._variables, totals, found[number:], strict=True)
            ]

        return outputs, differentiate

    def _recorded(self, inputs: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """The outputs, and what gives gradients of inputs and variables."""
        if self._recompute is None:
            with self._recording(inputs) as tape:
                outputs = list(self._function(*inputs))
            return outputs, lambda upstream: self._gradients(tape, outputs, inputs, upstream)
        recompute, state = self._recompute, self._recompute.state()

        def gradients_of(upstream: Sequence[Any]) -> list[Any]:
            with self._recording(inputs) as tape:
                made = list(recompute.function(state, *inputs))
            return self._gradients(tape, made, inputs, upstream)

        return list(self._function(*inputs)), gradients_of

    @contextlib.contextmanager
    def _recording(self, inputs: Sequence[Any]) -> Iterator[tf.GradientTape]:
        # Asked more than once only where it is traced: a graph holds nothing that a tape could let go.
        with tf.GradientTape(persistent=not tf.executing_eagerly(), watch_accessed_variables=False) as tape:
            tape.watch([*filter(is_floating, inputs), *self._variables])
            yield tape

    def _gradients(
        self, tape: tf.GradientTape, outputs: Sequence[Any], inputs: Sequence[Any], upstream: Sequence[Any]
    ) -> list[Any]:
        """Of inputs and variables."""
        pairs = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if dy is not None]
        sources = [*filter(is_floating, inputs), *self._variables]
        token = _differentiates.set(True)
        try:
            found = iter(tape.gradient([y for y, _ in pairs], sources, output_gradients=[dy for _, dy in pairs]))
        finally:
            _differentiates.reset(token)
        of_inputs = [next(found) if is_floating(value) else None for value in inputs]
        of_variables = list(found)
        dependence = shares.dependence_here()
        for place, variable in enumerate(self._variables) if self._sums else ():
            warn_if_summed(of_variables[place], variable, dependence)
            of_variables[place] = unrounded(of_variables[place], variable, dependence)
        return [*of_inputs, *of_variables]

    def _call(self, inputs: Sequence[Any], after: Sequence[Any]) -> tuple[list[Any], _Differentiate]:
        """As `_forward`, by functions."""
        specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)
        traced = self._trace(specs)
        outputs, kept = traced.call(inputs, after)
        hold = None if self._recompute is None else self._recompute.hold
        held = None if hold is None else hold(inputs)

        def differentiate(
            upstream: Sequence[Any], totals: Sequence[Any], after: Sequence[Any]
        ) -> tuple[list[Any], list[Any]]:
            given = inputs if held is None else held([dy for dy in upstream if dy is not None])
            return traced.call_back(given, kept, upstream, totals, after)

        return outputs, differentiate

    def _trace(self, specs: tuple[tf.TensorSpec, ...]) -> TracedPasses:
        if specs not in self._traced:
            self._traced[specs] = TracedPasses(self._place, self._recorded, self._variables, specs, self._stand_ins)
        return self._traced[specs]
