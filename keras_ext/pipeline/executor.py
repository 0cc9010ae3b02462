"""Runs stages in the order of a schedule, forward and backward.

Everything becomes one graph, in which data says what can run, and control edges what is to run first on each device:
an action starts when the one before it on its device has ended, the sums of its weights' gradients included. Without
these edges TensorFlow would run what it can as soon as it can, hold the activations of all micro-batches, and lose what
1F1B is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras import ops

import strategies
from keras_ext.pipeline.schedule import Kind, Schedule
from keras_ext.pipeline.stage import Stage

#: What micro-batch i loses: takes i, the model's outputs, and the losses that layers add; gives a scalar.
LossOf = Callable[[int, Sequence[Any], Sequence[Any]], Any]


#: Where there are more passes of stages forward, each stage is a function in the graph. It is traced once then, not
#: for each micro-batch: 16 of them through 4 stages of a small transformer are ready after 6 s, not 22. Steps take a
#: few percent longer, so few passes, which need it less, are in line.
MOST_CALLS_IN_LINE = 24


class Run:
    """One batch on its way through the pipeline.

    Args:
        stages: of the model.
        schedule: in whose order.
        parts: of the replica.
        devices: the part of each stage.
        variables: of each stage: TensorFlow's, which it reads and which are trained.
        penalties: for each stage a function that returns the penalties of its weights, which are variables of it.
        inputs: for each micro-batch the model's inputs, by the `id` of Keras' tensors.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        parts: strategies.ReplicaParts,
        devices: Sequence[int],
        variables: Sequence[Sequence[Any]],
        penalties: Sequence[Callable[[], list[Any]]],
        inputs: Sequence[Mapping[int, Any]],
    ) -> None:
        self._stages = stages
        self._schedule = schedule
        self._parts = parts
        self._devices = devices
        self._variables = variables
        self._from_outside = set(inputs[0])
        #: For each micro-batch what was computed of it, by the `id` of Keras' tensors.
        self.values = [dict(each) for each in inputs]
        # Losses that layers added, by stage and micro-batch; penalties of weights, by stage; gradients of all these.
        self._added: dict[tuple[int, int], list[Any]] = {}
        self._added_upstream: dict[tuple[int, int], list[Any]] = {}
        self._penalties = [parts.passes(devices[k], function, variables[k])([]) for k, function in enumerate(penalties)]
        self._penalties_upstream: list[list[list[Any]]] = [[[] for _ in outputs] for outputs, _ in self._penalties]
        self._pulls: dict[tuple[int, int], Any] = {}
        self._passes: dict[tuple[int, tuple[bool, ...]], Any] = {}
        self._in_line = len(stages) * len(inputs) <= MOST_CALLS_IN_LINE
        # By micro-batch and the `id` of a Keras tensor, with "logits" behind for those of it.
        self._logits: dict[tuple[int, int], Any] = {}
        self._upstream: dict[Any, list[Any]] = {}
        self._totals: list[list[Any]] = [[None] * len(own) for own in variables]
        # What the last action on each device has made.
        self._gates: dict[int, list[Any]] = {}

    def train(self, outputs: Sequence[Any], loss_of: LossOf) -> list[list[Any]]:
        """Computes outputs and gradients of all micro-batches.

        Args:
            outputs: of the model, Keras' tensors.
            loss_of: gives each micro-batch's part of the loss.

        Returns:
            For each stage the gradient of each of its variables, of the sum of all parts of the loss, or None.
        """
        for action in self._schedule.order():
            k, i = action.stage, action.microbatch
            if action.kind is Kind.FORWARD:
                self._forward(k, i)
                if k == len(self._stages) - 1:
                    self._lose(i, outputs, loss_of)
            else:
                self._backward(k, i)
        for k, (_, pull) in enumerate(self._penalties):
            _, gradients = pull([self._parts.added(self._devices[k], each) for each in self._penalties_upstream[k]])
            self._add(k, gradients)
        return self._totals

    def _forward(self, k: int, i: int) -> None:
        stage, part = self._stages[k], self._devices[k]
        inputs = [self.values[i][id(tensor)] for tensor in stage.inputs]
        masks = [_mask_of(value) for value in inputs]
        passes, made_of = self._passes_of(k, tuple(mask is not None for mask in masks))
        given = [*inputs, *_not_none(masks)]
        made, pull = passes(given, self._gates.get(part, ()))
        outputs = made[: len(stage.outputs)]
        rest = iter(made[len(outputs) :])
        self.values[i].update(zip(map(id, stage.outputs), outputs, strict=True))
        _hang(outputs, "_keras_mask", made_of["masks"], rest)
        for tensor, has_logits in zip(stage.outputs, made_of["logits"], strict=True):
            if has_logits:
                self._logits[i, id(tensor)] = next(rest)
        self._added[k, i] = list(rest)
        self._pulls[k, i] = pull, sum(made_of["masks"])
        self._gates[part] = [value for value in made if value.dtype.is_floating]

    def _passes_of(self, k: int, has_mask: tuple[bool, ...]) -> tuple[Any, dict[str, list[bool]]]:
        """The passes of a stage as a function of its inputs and their masks, and what that returns beside its outputs.

        That is, in turn, the masks of outputs, what a softmax or a sigmoid among them was computed of, and what layers
        add to the loss: Keras hangs them on tensors and on layers, which end where a function does.
        """
        if (k, has_mask) not in self._passes:
            stage, made_of = self._stages[k], dict[str, list[bool]]()

            def compute(*tensors: Any) -> list[Any]:
                own = tensors[: len(has_mask)]
                _hang(own, "_keras_mask", has_mask, iter(tensors[len(has_mask) :]))
                made = stage.compute(own, training=True)
                masks, logits = list(map(_mask_of, made)), list(map(_logits_of, made))
                made_of["masks"] = [mask is not None for mask in masks]
                made_of["logits"] = [each is not None for each in logits]
                return [*made, *_not_none(masks), *_not_none(logits), *stage.take_added_losses()]

            passes = self._parts.passes(self._devices[k], compute, self._variables[k], in_line=self._in_line)
            self._passes[k, has_mask] = passes, made_of
        return self._passes[k, has_mask]

    def _lose(self, i: int, outputs: Sequence[Any], loss_of: LossOf) -> None:
        predicted = [self.values[i][id(tensor)] for tensor in outputs]
        masks = list(map(_mask_of, predicted))
        # Of an output that is a softmax or a sigmoid Keras' losses take what that was computed of.
        logits = [self._logits.get((i, id(tensor))) for tensor in outputs]
        added = [loss for k in range(len(self._stages)) for loss in self._added[k, i]]
        penalties = [penalty for own, _ in self._penalties for penalty in own]
        count, num_losses = len(outputs), len(added) + len(penalties)

        def compute(*tensors: Any) -> list[Any]:
            own = tensors[:count]
            _hang(own, "_keras_mask", [mask is not None for mask in masks], iter(_not_none(masks)))
            _hang(own, "_keras_logits", [each is not None for each in logits], iter(tensors[count + num_losses :]))
            return [loss_of(i, own, tensors[count : count + num_losses])]

        given = [*predicted, *added, *penalties, *_not_none(logits)]
        [loss], pull = self._parts.passes(self._devices[-1], compute, [])(given)
        gradients, _ = pull([ops.ones_like(loss)])
        upstream = iter(gradients)
        for tensor in outputs:
            self._note((i, id(tensor)), next(upstream))
        for k in range(len(self._stages)):
            self._added_upstream[k, i] = [next(upstream) for _ in self._added[k, i]]
        for of_stage in self._penalties_upstream:
            for each in of_stage:
                each.append(next(upstream))
        for tensor, of_output in zip(outputs, logits, strict=True):
            if of_output is not None:
                self._note((i, id(tensor), "logits"), next(upstream))

    def _backward(self, k: int, i: int) -> None:
        stage, part = self._stages[k], self._devices[k]
        pull, num_masks = self._pulls.pop((k, i))
        of_logits = [tensor for tensor in stage.outputs if (i, id(tensor)) in self._logits]
        of_outputs = [self._gathered(part, (i, id(tensor))) for tensor in stage.outputs]
        of_outputs += [None] * num_masks + [self._gathered(part, (i, id(tensor), "logits")) for tensor in of_logits]
        of_inputs, of_variables = pull([*of_outputs, *self._added_upstream.pop((k, i))], self._gates.get(part, ()))
        gate = []
        for tensor, gradient in zip(stage.inputs, of_inputs, strict=False):
            if gradient is not None and id(tensor) not in self._from_outside:
                self._note((i, id(tensor)), gradient)
                gate.append(gradient)
        self._add(k, of_variables)
        self._gates[part] = gate + [total for total in self._totals[k] if total is not None]

    def _gathered(self, part: int, key: Any) -> Any:
        """The sum of the gradients that came for a tensor."""
        return self._parts.added(part, self._upstream.pop(key, []))

    def _note(self, key: Any, gradient: Any) -> None:
        if gradient is not None:
            self._upstream.setdefault(key, []).append(gradient)

    def _add(self, k: int, gradients: Sequence[Any]) -> None:
        pairs = zip(self._totals[k], gradients, strict=True)
        self._totals[k] = [self._parts.added(self._devices[k], pair) for pair in pairs]


def _not_none(values: Iterable[Any]) -> list[Any]:
    """Returns those that are not None."""
    return [value for value in values if value is not None]


def _mask_of(value: Any) -> Any:
    return getattr(value, "_keras_mask", None)


def _logits_of(value: Any) -> Any:
    return getattr(value, "_keras_logits", None)


def _hang(tensors: Sequence[Any], name: str, has: Sequence[bool], values: Iterator[Any]) -> None:
    """Gives those of the tensors that have an attribute the next of ``values`` for it."""
    for tensor, has_it in zip(tensors, has, strict=True):
        if has_it:
            setattr(tensor, name, next(values))
