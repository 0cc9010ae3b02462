"""Runs stages in the order of a schedule, forward and backward.

Everything becomes one graph, in which data says what can run, and control edges what is to run first on each device:
an action starts when the one before it on its device has ended, the sums of its weights' gradients included. Without
these edges TensorFlow would run what it can as soon as it can, hold the activations of all micro-batches, and lose what
1F1B is for.

Where stages are in several processes, each process computes its own, and `exchange` sends and receives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.exchange import Exchange
from keras_ext.pipeline.ledger import Gates, Ledger
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.schedule import Action, Kind, Schedule
from keras_ext.tensor_metadata import LOGITS, MASK, metadata_of, not_none, set_metadata
from strategies import layer_api

#: The loss of some micro-batches: takes their numbers, and for each the model's outputs, and the losses that layers
#: add; returns a scalar.
LossOf = Callable[[Sequence[int], Sequence[Sequence[Any]], Sequence[Sequence[Any]]], Any]

#: Told of the start (False) and of the end (True) of an action, when it comes.
ActionCallback = Callable[[Action, bool], None]


#: The largest number of forward passes of stages that are in line. With more, each stage is a function in the graph,
#: traced once and not for each micro-batch: 16 of them through 4 stages of a small transformer are ready after 6 s, not
#: 22. Steps take a few percent longer, so few passes, which need it less, are in line.
MOST_CALLS_IN_LINE = 24


class Run:
    """One batch on its way through the pipeline.

    Args:
        placed: the stages.
        schedule: in whose order.
        variables: of each stage: TensorFlow's, which it reads and which are trained.
        penalties: for each stage a function that returns the penalties of its weights, which are variables of it.
        inputs: for each micro-batch the model's inputs, by the `id` of Keras' tensors.
        remat: stages that are computed again for their backward pass, and hold only their inputs until then.
        reshard: weights that the strategy shards are gathered for each pass of a stage, once the one before it on its
            device has ended, and dropped behind it.
        on_action: called when actions start and end, if given.
    """

    def __init__(
        self,
        placed: PlacedStages,
        schedule: Schedule,
        variables: Sequence[Sequence[Any]],
        penalties: Sequence[Callable[[], list[Any]]],
        inputs: Sequence[Mapping[int, Any]],
        remat: Collection[int] = (),
        reshard: bool = False,
        on_action: ActionCallback | None = None,
    ) -> None:
        self._placed = placed
        self._stages = placed.stages
        self._schedule = schedule
        self._parts = placed.parts
        self._variables = variables
        self._remat = remat
        self._reshard = reshard
        self._on_action = on_action
        #: Scalars, one for each call of `on_action`, that are ready when the call has returned.
        self.recorded: list[Any] = []
        self._from_outside = set(inputs[0])
        self._ledger = Ledger([dict(each) for each in inputs])
        # Of each device, what its first action waits for.
        self._first_gates: dict[int, list[Any]] = {}
        self._own_penalties = {
            k: self._penalties(part, penalties[k], variables[k])
            for k, part in enumerate(placed.devices)
            if part is not None
        }
        self._ledger.penalties = {k: values for k, (values, _) in self._own_penalties.items()}
        self._vjps: dict[tuple[int, int], Any] = {}
        self._passes: dict[Any, Any] = {}
        self._in_line = len(placed.stages) * len(inputs) <= MOST_CALLS_IN_LINE
        self._totals: list[list[Any]] = [[None] * len(own) for own in variables]
        self._gates = Gates(schedule.devices)
        self._exchange = Exchange(placed, self._ledger, self._gates) if placed.crosses else None
        # True if the loss is computed once, from all micro-batches.
        self._joins_losses = False

    @property
    def values(self) -> Sequence[Mapping[int, Any]]:
        """For each micro-batch what was computed of it, by the `id` of Keras' tensors."""
        return self._ledger.values

    def train(self, loss_of: LossOf | None) -> list[list[Any]]:
        """Computes outputs and gradients of all micro-batches.

        Args:
            loss_of: gives each micro-batch's part of the loss; None in processes without the last stage.

        Returns:
            For each stage the gradient of each of its variables, of the sum of all parts of the loss, or None.
        """
        if self._exchange is not None:
            self._exchange.penalties()
        for action in self._schedule.order():
            if self._placed.devices[action.stage] is not None:
                self._compute(action, loss_of)
            if self._exchange is not None:
                self._exchange.after(action)
        if self._exchange is not None:
            self._exchange.gradients_of_penalties()
        for k, (values, vjp) in self._own_penalties.items():
            upstream = [self._gathered(self._placed.part(k), ("penalty", k, n)) for n in range(len(values))]
            part = self._placed.part(k)
            _, self._totals[k] = vjp(upstream, self._gates.last(part) if self._reshard else (), self._totals[k])
            if self._reshard and not_none(upstream):
                self._gates.note(part, not_none(self._totals[k]))
        return self._totals

    def _penalties(self, part: int, penalties: Callable[[], list[Any]], variables: Sequence[Any]) -> tuple[Any, Any]:
        """The penalties of a stage's weights, and what gives their gradients."""
        values, vjp = self._parts.passes(part, penalties, variables, reshard=self._reshard)(
            [], self._first_gates.get(part, ())
        )
        if self._reshard and values:
            self._first_gates[part] = values
        return values, vjp

    def _compute(self, action: Action, loss_of: LossOf | None) -> None:
        if action.kind is Kind.BACKWARD:
            self._backward(action)
            return
        self._forward(action)
        if action.stage == len(self._stages) - 1 and loss_of is not None:
            self._forward_ended(action.microbatch, loss_of)

    def _forward(self, action: Action) -> None:
        k, i = action.stage, action.microbatch
        stage = self._stages[k]
        inputs = [self.values[i][id(tensor)] for tensor in stage.inputs]
        masks = metadata_of(inputs, MASK)
        there = (tuple(value is not None for value in inputs), tuple(mask is not None for mask in masks))
        passes, made_of = self._passes_of(k, *there)
        given = [*not_none(inputs), *not_none(masks)]
        made, vjp = passes(given, self._started(action, given))
        outputs = made[: len(stage.outputs)]
        rest = iter(made[len(outputs) :])
        self._ledger.values[i].update(zip(map(id, stage.outputs), outputs, strict=True))
        set_metadata(outputs, MASK, [next(rest) if has_one else None for has_one in made_of["masks"]])
        for tensor, has_logits in zip(stage.outputs, made_of["logits"], strict=True):
            if has_logits:
                self._ledger.logits[i, id(tensor)] = next(rest)
        self._ledger.added[k, i] = list(rest)
        self._vjps[k, i] = vjp, sum(made_of["masks"]), there[0]
        self._ended(action, [value for value in made if value.dtype.is_floating])

    def _passes_of(
        self, k: int, has_input: tuple[bool, ...], has_mask: tuple[bool, ...]
    ) -> tuple[Any, dict[str, list[bool]]]:
        """The passes of a stage as a function of its inputs and their masks, and what that returns beside its outputs.

        Optional inputs of a model, and masks, may not be there.

        That is, in turn, the masks of outputs, what a softmax or a sigmoid among them was computed of, and what layers
        add to the loss: Keras keeps them as attributes of tensors and layers, which end where a function does.
        """
        key = k, has_input, has_mask
        if key not in self._passes:
            stage, made_of = self._stages[k], dict[str, list[bool]]()

            def compute(*tensors: Any) -> list[Any]:
                rest = iter(tensors)
                own = [next(rest) if has_one else None for has_one in has_input]
                set_metadata(own, MASK, [next(rest) if has_one else None for has_one in has_mask])
                added: list[Any] = []
                made = stage.compute(own, training=True, added_losses=added)
                masks, logits = metadata_of(made, MASK), metadata_of(made, LOGITS)
                made_of["masks"] = [mask is not None for mask in masks]
                made_of["logits"] = [each is not None for each in logits]
                return [*made, *not_none(masks), *not_none(logits), *added]

            def recompute(state: Sequence[Any], *tensors: Any) -> list[Any]:
                # Draws what was drawn, and drops what it would change.
                changing = list(zip(stage.state_variables, state, strict=True))
                with keras.StatelessScope(changing, collect_losses=True):
                    return compute(*tensors)

            passes = self._parts.passes(
                self._placed.part(k),
                compute,
                self._variables[k],
                recompute=(stage.state, recompute) if k in self._remat else None,
                # In line, TensorFlow would find that the recomputation is the same computation, and run it once.
                in_line=(self._in_line or stage.sums_over_replicas) and k not in self._remat,
                # A function cannot run its collective.
                reshard=self._reshard and not stage.sums_over_replicas,
                sums=True,
            )
            self._passes[key] = passes, made_of
        return self._passes[key]

    def _forward_ended(self, i: int, loss_of: LossOf) -> None:
        """Computes the loss of a micro-batch, or after the last one that of all, if it looks at all rows at once."""
        number = self._schedule.num_microbatches
        # Other schedules begin a backward pass before the last forward pass, so they compute each loss by itself.
        if i == 0 and number > 1 and self._schedule.runs_all_forward_first():
            try:
                with layer_api.joinable_microbatches():
                    self._compute_loss([i], loss_of)
            except layer_api.NeedsAllMicrobatchesError:
                self._joins_losses = True
        elif not self._joins_losses:
            self._compute_loss([i], loss_of)
        elif i == number - 1:
            self._compute_loss(range(number), loss_of)

    def _compute_loss(self, microbatches: Sequence[int], loss_of: LossOf) -> None:
        outputs, ledger = self._placed.outputs, self._ledger
        keys = [(i, id(tensor)) for i in microbatches for tensor in outputs]
        predicted = [self.values[i][tensor] for i, tensor in keys]
        masks = metadata_of(predicted, MASK)
        # Of an output that is a softmax or a sigmoid Keras' losses take what that was computed of.
        logits = {key: ledger.logits[key] for key in keys if ledger.logits.get(key) is not None}
        added = {
            (i, "added", k, n): loss
            for i in microbatches
            for k in range(len(self._stages))
            for n, loss in enumerate(ledger.added.get((k, i), []))
        }
        penalties = {
            ("penalty", k, n): each for k, own in sorted(ledger.penalties.items()) for n, each in enumerate(own)
        }

        def compute(*tensors: Any) -> list[Any]:
            rest = iter(tensors)
            own, own_added, own_penalties, own_logits = (
                {key: next(rest) for key in of} for of in (keys, added, penalties, logits)
            )
            set_metadata(list(own.values()), MASK, masks)
            set_metadata(list(own.values()), LOGITS, [own_logits.get(key) for key in keys])
            return [
                loss_of(
                    microbatches,
                    [[own[i, id(tensor)] for tensor in outputs] for i in microbatches],
                    [
                        [*(loss for key, loss in own_added.items() if key[0] == i), *own_penalties.values()]
                        for i in microbatches
                    ],
                )
            ]

        given = [*predicted, *added.values(), *penalties.values(), *logits.values()]
        [loss], vjp = self._parts.passes(self._placed.part(len(self._stages) - 1), compute, [])(given)
        gradients, _ = vjp([self._parts.as_weighed(ops.ones_like(loss))])
        noted = [*keys, *added, *penalties, *((i, tensor, "logits") for i, tensor in logits)]
        for key, gradient in zip(noted, gradients, strict=True):
            ledger.note(key, gradient)

    def _backward(self, action: Action) -> None:
        k, i = action.stage, action.microbatch
        stage, part = self._stages[k], self._placed.part(k)
        vjp, num_masks, has_input = self._vjps.pop((k, i))
        of_logits = [tensor for tensor in stage.outputs if (i, id(tensor)) in self._ledger.logits]
        of_outputs = [self._gathered(part, (i, id(tensor))) for tensor in stage.outputs]
        of_outputs += [None] * num_masks + [self._gathered(part, (i, id(tensor), "logits")) for tensor in of_logits]
        num_added = len(self._ledger.added[k, i])
        upstream = [*of_outputs, *(self._gathered(part, (i, "added", k, n)) for n in range(num_added))]
        of_inputs, self._totals[k] = vjp(upstream, self._started(action, not_none(upstream)), self._totals[k])
        gate = []
        # Behind those of inputs, those of masks.
        given = [tensor for tensor, is_there in zip(stage.inputs, has_input, strict=True) if is_there]
        for tensor, gradient in zip(given, of_inputs, strict=False):
            if gradient is not None and id(tensor) not in self._from_outside:
                self._ledger.note((i, id(tensor)), gradient)
                gate.append(gradient)
        gate += not_none(self._totals[k])
        self._ended(action, gate or self._gates.last(part))

    def _started(self, action: Action, given: Sequence[Any]) -> Sequence[Any]:
        """Returns the tensors that an action waits for, beside its inputs; its start is reported to `on_action`."""
        part = self._placed.part(action.stage)
        gate = self._gates.last(part) or self._first_gates.get(part, [])
        if self._on_action is None:
            return gate
        on_action = self._on_action
        noted = self._parts.host_callback(part, lambda: on_action(action, False), [*gate, *given])
        self.recorded.append(noted)
        return [*gate, noted]

    def _ended(self, action: Action, gate: list[Any]) -> None:
        part = self._placed.part(action.stage)
        if self._on_action is not None:
            on_action = self._on_action
            # After the start at any rate: an action may have nothing to compute.
            after = [*gate, self.recorded[-1]]
            noted = self._parts.host_callback(part, lambda: on_action(action, True), after)
            # The next action waits for it: else its start could be noted before the end of this one is.
            gate = [noted]
            self.recorded.append(noted)
        self._gates.note(part, gate)

    def _gathered(self, part: int, key: Any) -> Any:
        """The sum of the gradients that came for a tensor."""
        return self._parts.added(part, self._ledger.upstream.pop(key, []))
